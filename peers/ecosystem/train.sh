#!/bin/sh
# A script that starts a script.
set -e
"$1" "$2" plain
