#!/bin/sh
# usage: make_venv.sh PYTHON FOLDER; makes a virtual environment, or says what is missing.
set -eu
python=$1
folder=$2

if ! command -v "$python" >/dev/null 2>&1; then
  echo "make: $python is not there" >&2
  echo "hint: apt-get install python3 python3-venv, or name one: make PYTHON=python3.11 ..." >&2
  exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  echo "make: $("$python" --version) is too old, mlcbuild needs Python 3.10 or newer" >&2
  echo "hint: name a newer one: make PYTHON=python3.11 ..." >&2
  exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  echo "make: $python cannot make virtual environments, the modules venv and ensurepip are missing" >&2
  echo "hint: apt-get install python$version-venv" >&2
  exit 1
fi
[ -x "$folder/bin/python" ] && "$folder/bin/python" -m pip --version >/dev/null 2>&1 && exit 0
rm -rf "$folder"
"$python" -m venv "$folder"
