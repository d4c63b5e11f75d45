"""A repository with the C++ side of the installed TensorFlow, pybind11 and Python."""

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "tensorflow_definitions",
    defines = {defines},
)

cc_library(
    name = "tensorflow",
    hdrs = glob(["tensorflow/**"]),
    includes = [
        "tensorflow",
        "tensorflow/external/farmhash_archive/src",
        "tensorflow/external/highwayhash",
    ],
    deps = [":tensorflow_definitions"],
)

cc_library(
    name = "cuda_headers",
    includes = [
        "tensorflow/third_party/gpus/cuda/include",
        "tensorflow/third_party/gpus/cudnn/include",
    ],
    deps = [":tensorflow"],
)

filegroup(
    name = "tensorflow_framework",
    srcs = ["{framework}"],
)

filegroup(
    name = "tensorflow_cc",
    srcs = ["libtensorflow_cc.so.2"],
)

cc_library(
    name = "pybind11",
    hdrs = glob(["pybind11/**", "python/**"]),
    includes = ["pybind11", "python"],
)
"""

_INCLUDES = "import pybind11, sysconfig; print(pybind11.get_include(), sysconfig.get_path('include'), sep=';')"

def _run(ctx, arguments):
    python = ctx.os.environ.get("PYTHON_BIN_PATH") or ctx.which("python3")
    result = ctx.execute([python] + arguments)
    if result.return_code:
        fail("%s cannot tell where TensorFlow and pybind11 are:\n%s" % (python, result.stderr))
    return result.stdout.strip().split(";")

def _pip_packages_impl(ctx):
    script = ctx.path(Label("//pip_package:tensorflow_build_flags.py"))
    tensorflow = _run(ctx, [script])
    version, include, framework = tensorflow[:3]
    pybind11_include, python_include = _run(ctx, ["-c", _INCLUDES])
    ctx.symlink(include, "tensorflow")
    framework = ctx.path(framework)
    ctx.symlink(framework, framework.basename)
    ctx.symlink(framework.dirname.get_child("libtensorflow_cc.so.2"), "libtensorflow_cc.so.2")
    ctx.symlink(pybind11_include, "pybind11")
    ctx.symlink(python_include, "python")
    minor = ".".join(version.split(".")[:2])
    # TensorFlow 2.19's package lacks the header of XLA's custom calls.
    has_xla = ctx.path(include + "/xla/ffi/api/ffi.h").exists
    ctx.file(
        "versions.bzl",
        'TENSORFLOW_MINOR = "%s"\nHAS_XLA = %s\n' % (minor, has_xla),
    )
    ctx.file("BUILD", _BUILD.format(
        defines = repr(tensorflow[3:]),
        framework = framework.basename,
    ))

pip_packages = repository_rule(
    implementation = _pip_packages_impl,
    environ = ["PATH", "PYTHON_BIN_PATH"],
    local = True,
)
