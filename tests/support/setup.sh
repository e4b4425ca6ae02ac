# What tests/run and bench/run share: the packages they need, the configuring and the building. Sourced, never run.
# The caller has set `top` (the tree's root) and `me` (the command's name, for messages).

packages=(
  g++ meson ninja-build pkgconf                                    # the build
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc grpc-proto
  libuv1-dev libfmt-dev libssl-dev
  doctest-dev cmake                                                # the tests; cmake for the consumer that uses it
  libcli11-dev libbenchmark-dev                                    # the programs in bench/
)

say() { printf '%s: %s\n' "$me" "$*"; }
fail() { printf '%s: %s\n' "$me" "$*" >&2; exit 1; }
misuse() { printf '%s: %s (see %s --help)\n' "$me" "$*" "$me" >&2; exit 2; }

# Installs what is missing. Asks nothing of the network when nothing is.
need_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "this is no Debian: taking for granted what these Debian packages bring: ${packages[*]}"
    return
  fi
  local missing=() package
  local installed
  installed=" $(dpkg-query -W -f '${db:Status-Status}:${Package} ' "${packages[@]}" 2>/dev/null || true)"
  for package in "${packages[@]}"; do
    [[ $installed == *" installed:$package "* ]] || missing+=("$package")
  done
  [[ ${#missing[@]} -eq 0 ]] && return
  if [[ $(id -u) -ne 0 ]]; then
    fail "these packages are missing and only root can install them; run:  sudo apt-get install ${missing[*]}"
  fi
  say "installing ${#missing[@]} missing packages: ${missing[*]}"
  apt-get -q update || fail "'apt-get update' failed (see above); $me needs these packages: ${missing[*]}"
  DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "${missing[@]}" ||
    fail "apt-get could not install: ${missing[*]} (see above)"
}

# configure NAME OPTION...: build/NAME, set up with these options unless it is already.
configure() {
  local directory=$top/build/$1
  shift
  # Warnings are errors in CI alone, so that a newer compiler's new warning stops nobody who only wants to build.
  local options=("$@")
  [[ ${CI:-} == true ]] && options+=(-Dwerror=true)
  if [[ -f $directory/build.ninja && -f $directory/penstock-options &&
        $(<"$directory/penstock-options") == "${options[*]}" ]]; then
    return
  fi
  mkdir -p "$top/build"
  say "configuring ${directory#"$top"/}"
  local log=$directory.log again=()
  [[ -f $directory/build.ninja ]] && again=(--wipe)
  if ! meson setup "${again[@]}" "$directory" "$top" "${options[@]}" >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    fail "meson could not configure ${directory#"$top"/} (the end of its output is above, all of it in ${log#"$top"/})"
  fi
  printf '%s\n' "${options[*]}" >"$directory/penstock-options"
}

# build NAME TARGET...: compiles; all of it where no target is named.
build() {
  local directory=$top/build/$1
  shift
  command -v ccache >/dev/null || say "building without ccache (install it and later builds take seconds)"
  ninja -C "$directory" "$@" || fail "${directory#"$top"/} does not build (see above)"
}
