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
    # The ticker ends with the script, also at Ctrl-C.
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

# The number of compilers that run at a time: one a core, and 2.5 GB for each, because LibTorch's headers are large.
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

# install_packages NAME...: installs Debian packages as root; otherwise prints the line that does, and ends.
install_packages() {
  command -v apt-get >/dev/null ||
    die "this machine lacks, by their Debian names: $*" "install them with your package manager, then run this again"
  [ "$(id -u)" -eq 0 ] ||
    die "this machine lacks some packages; this line installs them:" "sudo apt-get update && sudo apt-get install -y $*"
  echo "  Debian packages: $*"
  step "installing $# Debian packages" apt_install "$@"
}

# missing_headers NAME...: prints those that the compiler does not find; all of them if there is no compiler.
missing_headers() {
  local header found
  found=$(for header in "$@"; do printf '#if __has_include(<%s>)\nfound %s\n#endif\n' "$header" "$header"; done |
    "${CXX:-g++}" -E -P -x c++ - 2>/dev/null | sed -n 's/^found //p') || true
  for header in "$@"; do grep -qxF "$header" <<<"$found" || echo "$header"; done
}

# missing_needs PURPOSE...: prints the packages of scripts/needs.txt that this machine lacks for these purposes.
missing_needs() {
  local kind name package when header
  local -A package_of=()
  while read -r kind name package when; do
    case " $* " in *" $when "*) ;; *) continue ;; esac
    case $kind in
      program) PATH=$PATH:/usr/sbin:/sbin command -v "$name" >/dev/null || echo "$package" ;;
      module) python3 -c "import $name" 2>/dev/null || echo "$package" ;;
      header) package_of[$name]=$package ;;
    esac
  done < <(grep -v '^#' scripts/needs.txt)
  for header in $(missing_headers "${!package_of[@]}"); do echo "${package_of[$header]}"; done
}
