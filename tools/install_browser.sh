#!/bin/sh
# Installs Chromium from the distribution, where that is possible. Never fails: without it the tests of the page are skipped.
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then
        echo "browser: $(command -v "$name") is there"
        exit 0
    fi
done
if ! command -v apt-get >/dev/null; then
    echo "browser: not installed, there is no apt-get"
elif [ "$(id -u)" != 0 ]; then
    echo "browser: not installed, only root may: apt-get install chromium"
elif (apt-get update -q && apt-get install -q -y --no-install-recommends chromium) >/dev/null 2>&1; then
    echo "browser: chromium was installed"
else
    echo "browser: not installed, apt-get failed"
fi
