# Sourced by install-test-tools and install-bench-tools: programs out of packages of the distribution, unpacked, not
# installed. Sets `tools` and `scratch`; the scratch directory is removed at the end.
# shellcheck shell=bash

tools=$PWD/.tools
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$tools/bin"

has() { command -v "$1" >/dev/null; }

# refresh SUITE: package lists of the machine's own sources (SUITE "own"), or of another suite of the Debian mirror
# that the machine uses anyway, in a private place: needs no rights and changes nothing.
refresh() {
    local suite=$1 mirror
    local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    options=(-qq -o "Dir::State::Lists=$scratch/$suite/lists" -o "Dir::Cache=$scratch/$suite/cache" -o Debug::NoLocking=1)
    [ "$(id -u)" != 0 ] || options+=(-o APT::Sandbox::User=root)
    if [ "$suite" != own ]; then
        # shellcheck disable=SC2016  # the format is apt's own
        mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 -E '/debian/?$') || return 1
        mkdir -p "$scratch/$suite"
        echo "deb [signed-by=$keyring] $mirror $suite main" > "$scratch/$suite/sources.list"
        options+=(-o "Dir::Etc::SourceList=$scratch/$suite/sources.list" -o Dir::Etc::SourceParts=/dev/null)
    fi
    [ -d "$scratch/$suite/lists/partial" ] && return 0
    mkdir -p "$scratch/$suite/lists/partial" "$scratch/$suite/cache/archives/partial"
    apt-get "${options[@]}" update >/dev/null
}

# unpack SUITE PACKAGE: the package's programs, into $scratch/SUITE/root/usr/bin
unpack() {
    local suite=$1 package=$2 folder=$scratch/$1/deb-$2
    has apt-get && refresh "$suite" || return 1
    mkdir -p "$folder"
    (cd "$folder" && apt-get "${options[@]}" download "$package" >/dev/null 2>&1) || return 1
    dpkg -x "$folder"/*.deb "$scratch/$suite/root"
}

# keep SUITE PROGRAM AS: copy an unpacked program to where it stays
keep() { [ -x "$scratch/$1/root/usr/bin/$2" ] && cp "$scratch/$1/root/usr/bin/$2" "$3"; }
