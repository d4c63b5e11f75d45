"""The inner loops for one instruction set, with the flags of CMakeLists.txt."""

def simd_kernels(name, vector_bytes, copts = []):
    native.cc_library(
        name = name,
        srcs = ["simd_kernels.cc"],
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
