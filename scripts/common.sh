# Sourced by the scripts beside it: goes to the project's root, and shows progress.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
  printf 'brigade: %s\n' "$1" >&2
  shift
  [ $# -eq 0 ] || printf '  %s\n' "$@" >&2
  exit 1
}

# step TEXT COMMAND...: runs COMMAND quietly under one line with its seconds; shows its output only if it fails.
step() {
  local text=$1 begin=$SECONDS log ticker='' status=0
  shift
  log=$(mktemp)
  if [ -t 1 ]; then
    # Looks whether the script still lives, so that Ctrl-C leaves no ticker behind.
    (while kill -0 $$ 2>/dev/null; do
      printf '\r  %-58s %4d s' "$text" $((SECONDS - begin))
      sleep 1
    done) &
    ticker=$!
  else
    printf '  %s ...\n' "$text"
  fi
  "$@" >"$log" 2>&1 </dev/null || status=$?
  if [ -n "$ticker" ]; then
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
    printf '\r'
  fi
  if [ $status -ne 0 ]; then
    printf '  %-58s %4d s  failed\n' "$text" $((SECONDS - begin))
    tail -n 40 "$log" >&2
    rm -f "$log"
    exit $status
  fi
  rm -f "$log"
  printf '  %-58s %4d s\n' "$text" $((SECONDS - begin))
}

# How many compilers at a time: one a core, and 2.5 GB for each, since LibTorch's headers are large.
jobs() {
  if [ -n "${JOBS:-}" ]; then
    echo "$JOBS"
    return
  fi
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ {print int($2 / 2500000)}' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  echo $((cores < memory ? cores : memory))
}

apt_install() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q && apt-get install -q -y --no-install-recommends "$@"
}

# install_packages NAME...: installs Debian packages as root; otherwise says which line does, and ends.
install_packages() {
  command -v apt-get >/dev/null ||
    die "this machine lacks, by their Debian names: $*" "install them with your package manager, then run this again"
  [ "$(id -u)" -eq 0 ] ||
    die "this machine lacks some packages; this line installs them:" "sudo apt-get update && sudo apt-get install -y $*"
  echo "  Debian packages: $*"
  step "installing $# Debian packages" apt_install "$@"
}
