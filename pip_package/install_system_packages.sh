#!/bin/bash
# Makes sure of what PyPI has not: a C++ compiler, Python's headers and its venv.
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

if ! is_complete; then
  if [[ $(id -u) -eq 0 ]]; then
    sudo=""
  elif sudo -n true 2> /dev/null; then
    sudo="sudo -n"
  else
    sudo="none"
  fi
  if [[ $sudo == none ]] || ! command -v apt-get > /dev/null; then
    fail "building needs a C++ compiler and Python's headers and venv (Debian: $packages)"
  fi
  echo "Installing $packages"
  $sudo apt-get -qq update
  $sudo env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -y install --no-install-recommends $packages > /dev/null
  is_complete || fail "$packages are installed, but not for $python"
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "Python 3.10 or later is needed, but $python is $("$python" --version)"
