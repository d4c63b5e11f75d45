"""The inner loops for one instruction set, with the flags of CMakeLists.txt."""

def simd_kernels(name, vector_bytes, copts = [], source = "simd_kernels.cc"):
    native.cc_library(
        name = name,
        srcs = [source],
        copts = [
            "-ffp-contract=fast",
            "-fno-math-errno",
            "-fno-trapping-math",
        ] + copts,
        local_defines = [
            "CRNN_SIMD_NAME=" + name,
            "CRNN_SIMD_BYTES=%d" % vector_bytes,
        ],
        visibility = ["//visibility:private"],
        deps = [":simd_header"],
    )
