# What tests/run and bench/run share: the packages they need, the configuring and the building. Sourced, never run.
# The caller has set `top` (the tree's root) and `me` (the command's name, for messages).

packages=(
  g++ meson ninja-build pkgconf                                    # the build
  dpkg-dev                                                         # tells meson Debian's libdir: it takes lib64 without, where CMake does not look
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc grpc-proto
  libuv1-dev libfmt-dev libssl-dev
  doctest-dev cmake                                                # the tests; cmake for the consumer that uses it
  libcli11-dev libbenchmark-dev valgrind                           # the programs in bench/; valgrind counts instructions
  libsqlite3-dev libpq-dev postgresql python3-yaml openssl          # the example in docs/example, and its tests
  opentelemetry-cpp-dev                                            # telemetry; Debian 12 has it in its backports only
  prometheus-cpp-dev
  python3-grpcio python3-protobuf                                  # the lab's short selection (tests/lab),
  liblua5.3-0 libopentracing-c-wrapper0                            # and what haproxy needs for it
)
# What is built or run where these are, and left out where they are not.
optional=(opentelemetry-cpp-dev prometheus-cpp-dev python3-grpcio python3-protobuf liblua5.3-0 libopentracing-c-wrapper0)

# Another clone of the tree, such as CI's next one, finds what ccache has of this one.
export CCACHE_NOHASHDIR=true CCACHE_BASEDIR=$top

say() { printf '%s: %s\n' "$me" "$*"; }
fail() { printf '%s: %s\n' "$me" "$*" >&2; exit 1; }
misuse() { printf '%s: %s (see %s --help)\n' "$me" "$*" "$me" >&2; exit 2; }

# Where no source of this Debian offers the package, adds the release's backports: the entry that brings the release
# itself, mirror and keys and all, with its suite exchanged.
offer_backports() {
  local package=$1 release directory=/etc/apt/sources.list.d
  local target=$directory/penstock-backports
  apt-cache pkgnames "$package" | grep -Fxq "$package" && return
  release=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
  [[ -n $release ]] || return 0
  say "adding $release-backports to apt's sources, for $package"
  cat "$directory"/*.sources 2>/dev/null | awk -v release="$release" -v RS= '
    !found && /(^|\n)Types:[^\n]*deb( |\n|$)/ && $0 ~ "(^|\n)Suites:([^\n]* )?" release "( [^\n]*)?(\n|$)" {
      found = 1
      lines = split($0, line, "\n")
      for (i = 1; i <= lines; ++i) {
        if (line[i] ~ /^Suites:/) print "Suites: " release "-backports"
        else if (line[i] !~ /^#/) print line[i]
      }
    }' >"$target.new" || true
  if [[ -s $target.new ]]; then
    mv "$target.new" "$target.sources"
  else
    cat /etc/apt/sources.list "$directory"/*.list 2>/dev/null |
      sed -nE "s/^(deb +(\[[^]]*\] +)?[^ ]+ +)$release( .*)/\1$release-backports\3/p" | head -n 1 >"$target.new" || true
    if [[ -s $target.new ]]; then mv "$target.new" "$target.list"; else rm -f "$target.new"; fi
  fi
  apt-get -q update || fail "'apt-get update' failed after adding $release-backports (see above)"
}

# unpack PACKAGE FILE...: these files out of a package, into build/tools, without installing it: that would start a server on
# this machine.
unpack() {
  local package=$1 place=$top/build/tools
  shift
  mkdir -p "$place"
  (cd "$place" && rm -f "$package"_*.deb && { apt-get -q download "$package" || { apt-get -q update && apt-get -q download "$package"; }; } &&
    dpkg-deb --fsys-tarfile "$package"_*.deb | tar -x --transform 's,.*/,,' "${@/#/./}" && rm -f "$package"_*.deb)
}

# promtool. Left out where it cannot be had: the checks that want it then say so.
need_promtool() {
  export PENSTOCK_PROMTOOL=$top/build/tools/promtool
  command -v promtool >/dev/null && PENSTOCK_PROMTOOL=$(command -v promtool)
  [[ -x $PENSTOCK_PROMTOOL ]] || unpack prometheus usr/bin/promtool ||
    say "no promtool (Debian package 'prometheus'): the alert rules will not be checked"
}

# nginx and haproxy, for the lab, which looks for them here and on the path. It reports what is absent.
need_proxies() {
  local path=$PATH:/usr/sbin:$top/build/tools
  PATH=$path command -v haproxy >/dev/null || unpack haproxy usr/sbin/haproxy || say "no haproxy: the lab's cases with it will be absent"
  PATH=$path command -v nginx >/dev/null || { unpack nginx usr/sbin/nginx && unpack libnginx-mod-stream usr/lib/nginx/modules/ngx_stream_module.so; } ||
    say "no nginx: the lab's cases with it will be absent"
}

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
    local required=" ${missing[*]} "
    for package in "${optional[@]}"; do required=${required/ $package / }; done
    if [[ ${CI:-} != true && -z ${required// /} ]]; then
      say "building without what needs ${missing[*]} (as root this command installs them)"
      return
    fi
    fail "these packages are missing and only root can install them; run:  sudo apt-get install ${missing[*]}"
  fi
  say "installing ${#missing[@]} missing packages: ${missing[*]}"
  apt-get -q update || fail "'apt-get update' failed (see above); $me needs these packages: ${missing[*]}"
  [[ " ${missing[*]} " != *" opentelemetry-cpp-dev "* ]] || offer_backports opentelemetry-cpp-dev
  # What is optional is done without where this Debian has none of it, but in CI.
  for package in "${optional[@]}"; do
    [[ ${CI:-} != true && " ${missing[*]} " == *" $package "* ]] || continue
    apt-cache show "$package" >/dev/null 2>&1 && continue
    say "there is no $package here: building without what needs it"
    local others=() other
    for other in "${missing[@]}"; do [[ $other == "$package" ]] || others+=("$other"); done
    missing=("${others[@]}")
  done
  [[ ${#missing[@]} -eq 0 ]] && return
  DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "${missing[@]}" ||
    fail "apt-get could not install: ${missing[*]} (see above)"
}

# configure NAME OPTION...: build/NAME, set up with these options unless it is already.
configure() {
  local directory=$top/build/$1
  shift
  # Warnings are errors in CI alone, so that a newer compiler's new warning stops nobody who only wants to build.
  local options=("$@" -Dwerror="$([[ ${CI:-} == true ]] && echo true || echo false)")
  # What is optional must not be missing from CI unnoticed.
  [[ ${CI:-} != true ]] || options+=(-Dotel=enabled -Dprometheus=enabled)
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
