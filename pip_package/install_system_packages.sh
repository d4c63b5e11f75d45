#!/bin/bash
# Makes sure of what PyPI has not: a C++ compiler, Python's headers and its venv;
# and installs the memory allocators that tests try, if it can.
# Usage: install_system_packages.sh [python3]
set -euo pipefail

python=${1:-python3}
compiler=${CXX:-c++}
packages="g++ python3-venv python3-dev"

is_complete() {
  {
    command -v "${compiler%% *}" && "$python" -c '
import ensurepip, pathlib, sys, sysconfig, venv
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file())'
  } > /dev/null 2>&1
}

fail() {
  echo "error: $1" >&2
  exit 1
}

# Returns false if this user cannot install packages, or if that fails.
install() {
  local sudo=()
  command -v apt-get > /dev/null || return 1
  if [[ $(id -u) -ne 0 ]]; then
    sudo=(sudo -n)
    "${sudo[@]}" true 2> /dev/null || return 1
  fi
  echo "Installing $1"
  "${sudo[@]}" apt-get -qq update &&
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get -qq -y install --no-install-recommends $1 > /dev/null
}

if ! is_complete; then
  install "$packages" ||
    fail "building needs a C++ compiler and Python's headers and venv (Debian: $packages)"
  is_complete || fail "$packages are installed, but not for $python"
fi

# Only tests need them, and without these libraries, a few tests are skipped.
for library in libjemalloc.so.2 libtcmalloc_minimal.so.4; do
  if ! ldconfig -p | grep -q "$library"; then
    install "libjemalloc2 libtcmalloc-minimal4" || true
    break
  fi
done

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "Python 3.10 or later is needed, but $python is $("$python" --version)"
