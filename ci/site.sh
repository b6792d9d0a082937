#!/usr/bin/env bash
# Builds the documentation as a site that can be searched, and checks its links: ci/site.sh [DIR] (default: target/site).
#
# It needs mdBook (cargo install mdbook --locked) and Python. The pages are those of docs/SUMMARY.md; the site itself is not stored here.
set -euo pipefail
cd "$(dirname "$0")/.."
site=$(realpath -m "${1:-target/site}")
command -v mdbook > /dev/null || { echo "ci/site.sh: mdbook is not there: cargo install mdbook --locked" >&2 && exit 2; }
source=target/site-source
python3 ci/site.py gather . "$source/src"
cat > "$source/book.toml" << 'END'
[book]
title = "Bivouac"
language = "en"
src = "src"

[output.html]
default-theme = "light"
preferred-dark-theme = "navy"

[output.html.search]
boost-title = 2
END
mdbook build "$source" --dest-dir "$site"
python3 ci/site.py check "$site"
echo "$site/index.html"
