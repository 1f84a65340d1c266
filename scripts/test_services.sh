#!/usr/bin/env bash
# Install the programs that tests use, where they are missing and this is a machine on which
# that can be done (root, apt-get). Tests of what is missing after this skip and say so.
#
#   scripts/test_services.sh
set -uo pipefail

# command=package
services=(
  docker-registry=docker-registry
  skopeo=skopeo
  chromium=chromium
)

missing=()
for service in "${services[@]}"; do
  command -v "${service%%=*}" > /dev/null || missing+=("${service#*=}")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi
if [[ $(id -u) != 0 ]] || ! command -v apt-get > /dev/null; then
  echo "not installed, so their tests skip: ${missing[*]}" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
install() { timeout 120 apt-get install -qq -y --no-install-recommends "${missing[@]}"; }
if ! { install || { timeout 120 apt-get update -qq && install; }; } > /dev/null 2>&1; then
  echo "cannot install, so their tests skip: ${missing[*]}" >&2
fi
