#!/usr/bin/env bash
# Not tried: conda-build was not available where this was written. See meta.yaml.
set -euo pipefail
export CARGO_HOME=$SRC_DIR/cargo
ci/install.sh "$PREFIX"
