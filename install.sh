#!/bin/sh
# Installs exec-server for the user who calls it, from files that are already here: it downloads nothing and needs no root.
#
# The sums of SHA256SUMS are checked before anything is written below the prefix. Every file is written beside its place and
# moved over it, so that a server that runs from the old program goes on, and the next start finds the new one.

set -eu

# What is ours below the prefix; the manual pages beside these are share/man/man1/exec-server.1 and exec-server-*.1.
NAMES='bin/exec-server
share/bash-completion/completions/exec-server
share/zsh/site-functions/_exec-server
share/fish/vendor_completions.d/exec-server.fish
share/doc/exec-server/README.md
share/doc/exec-server/CHANGELOG.md
share/doc/exec-server/PROTOCOL.md
share/doc/exec-server/LICENSE-APACHE
share/doc/exec-server/LICENSE-MIT
share/doc/exec-server/THIRD-PARTY.md'

# Deepest first, so that an uninstall can drop those that became empty.
FOLDERS='bin
share/bash-completion/completions
share/bash-completion
share/zsh/site-functions
share/zsh
share/fish/vendor_completions.d
share/fish
share/doc/exec-server
share/doc
share/man/man1
share/man
share'

NEWLINE='
'

usage() {
    cat <<'USAGE'
Usage: install.sh [--prefix DIR] [SOURCE]
       install.sh [--prefix DIR] --uninstall

Installs exec-server with its manual pages and completions. SOURCE is a folder of `cargo xtask dist`, an unpacked package, a
package (exec-server-VERSION-TARGET.tar.gz) or the program alone; without it, the folder of this script.

  --prefix DIR   install below DIR [default: $PREFIX, else ~/.local]
  --uninstall    remove what an install put there; running servers and their state stay
  --help         print this

Examples:
  sh install.sh
  sh install.sh --prefix ~/opt exec-server-0.1.0-x86_64-unknown-linux-musl.tar.gz
  PREFIX=/srv/tools sh install.sh --uninstall

Exit codes: 0 done, 1 not done and nothing changed or as said, 2 the command line is wrong.
USAGE
}

say() {
    printf 'install.sh: %s\n' "$*" >&2
}

fail() {
    say "$*"
    exit 1
}

wrong_usage() {
    say "$*"
    say 'try `sh install.sh --help`'
    exit 2
}

prefix=${PREFIX:-}
uninstall=no
source=
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h)
            usage
            exit 0
            ;;
        --uninstall) uninstall=yes ;;
        --prefix)
            [ $# -ge 2 ] || wrong_usage '`--prefix` needs a folder'
            prefix=$2
            [ -n "$prefix" ] || wrong_usage '`--prefix` needs a folder'
            shift
            ;;
        --prefix=*)
            prefix=${1#--prefix=}
            [ -n "$prefix" ] || wrong_usage '`--prefix` needs a folder'
            ;;
        -*) wrong_usage "unknown option: \`$1\`" ;;
        *)
            [ -z "$source" ] || wrong_usage "more than one source: \`$1\`"
            [ -n "$1" ] || wrong_usage 'the source is empty'
            source=$1
            ;;
    esac
    shift
done
if [ -z "$prefix" ]; then
    [ -n "${HOME:-}" ] || fail 'neither HOME nor PREFIX is set; say where with `--prefix DIR`'
    prefix=$HOME/.local
fi
case $prefix in
    *"$NEWLINE"*) fail 'the prefix has a line break' ;;
    /*) ;;
    *) prefix=$(pwd)/$prefix ;;
esac
# PATH is compared by its text.
while [ "${prefix%/}" != "$prefix" ]; do
    prefix=${prefix%/}
done
bin=$prefix/bin

if [ "$uninstall" = yes ]; then
    [ -z "$source" ] || wrong_usage '`--uninstall` takes no source'
    removed=0
    remove() {
        if [ -f "$1" ] || [ -L "$1" ]; then
            rm -f -- "$1" || fail "cannot remove \`$1\`"
            removed=$((removed + 1))
        fi
    }
    # A here-document and not a pipe: the loop must run in this shell for the count and for `fail`.
    while IFS= read -r name; do
        remove "$prefix/$name"
    done <<NAMES
$NAMES
NAMES
    for page in "$prefix"/share/man/man1/exec-server.1 "$prefix"/share/man/man1/exec-server-*.1; do
        remove "$page"
    done
    if [ "$removed" -eq 0 ]; then
        say "nothing of exec-server is installed below \`$prefix\`"
        exit 0
    fi
    # The prefix itself stays: it may have been somebody's before.
    while IFS= read -r folder; do
        rmdir -- "$prefix/$folder" 2>/dev/null || :
    done <<FOLDERS
$FOLDERS
FOLDERS
    printf 'removed %s files of exec-server from %s\n' "$removed" "$prefix"
    state=${XDG_STATE_HOME:-${HOME:-}/.local/state}/exec-server
    [ ! -d "$state" ] || say "sessions and tokens stay in \`$state\`"
    exit 0
fi

work=
staged=
cleanup() {
    if [ -n "$staged" ] && [ -f "$staged" ]; then
        while IFS= read -r leftover; do
            rm -f -- "$leftover"
        done <"$staged"
    fi
    [ -z "$work" ] || rm -rf -- "$work"
}
trap cleanup EXIT
# Not every shell runs the EXIT trap when a signal ends it.
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 141' PIPE
trap 'exit 143' TERM
work=$(mktemp -d "${TMPDIR:-/tmp}/exec-server-install.XXXXXX") || fail 'cannot make a temporary folder'

if command -v sha256sum >/dev/null 2>&1; then
    sum_of() { sha256sum <"$1" | cut -d ' ' -f 1; }
elif command -v shasum >/dev/null 2>&1; then
    sum_of() { shasum -a 256 <"$1" | cut -d ' ' -f 1; }
else
    fail 'neither `sha256sum` nor `shasum` is here to check the files with'
fi

# verify FOLDER NAME: the file is the one that FOLDER/SHA256SUMS means.
verify() {
    [ -f "$1/SHA256SUMS" ] || fail "no SHA256SUMS in \`$1\`: copy it along; nothing was changed"
    if [ ! -f "$1/$2" ] || [ -L "$1/$2" ]; then
        fail "no file \`$2\` in \`$1\`; nothing was changed"
    fi
    expected=
    while read -r sum name; do
        # The star is how the sum of a file read as binary is written.
        [ "${name#\*}" != "$2" ] || expected=$sum
    done <"$1/SHA256SUMS"
    [ -n "$expected" ] || fail "SHA256SUMS in \`$1\` does not list \`$2\`; nothing was changed"
    [ "$(sum_of "$1/$2")" = "$expected" ] ||
        fail "\`$1/$2\` is damaged: it is not what SHA256SUMS says; copy it again; nothing was changed"
}

case $(uname -s) in
    Linux) ;;
    *) fail "exec-server runs on Linux, and this is $(uname -s)" ;;
esac
machine=$(uname -m)
case $machine in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
esac

if [ -z "$source" ]; then
    case $0 in
        */*) source=${0%/*} ;;
        *) source=. ;;
    esac
    [ -n "$source" ] || source=/
fi

# Becomes the folder of an unpacked package, or empty where the program comes alone.
tree=
package=
program=
if [ -d "$source" ]; then
    if [ -f "$source/bin/exec-server" ]; then
        tree=$source
    else
        others=
        for found in "$source"/exec-server-*.tar.gz; do
            [ -f "$found" ] || continue
            case ${found##*/} in
                *"-$machine-"*)
                    [ -z "$package" ] || fail "more than one package in \`$source\`: name the one to install"
                    package=$found
                    ;;
                *) others=${found##*/} ;;
            esac
        done
        if [ -z "$package" ]; then
            [ -z "$others" ] || fail "this machine is $machine, and \`$others\` is for another; nothing was changed"
            [ -f "$source/exec-server" ] || fail "neither a package nor the program is in \`$source\`"
            program=$source/exec-server
        fi
    fi
elif [ -f "$source" ]; then
    case $source in
        *.tar.gz | *.tgz) package=$source ;;
        *) program=$source ;;
    esac
else
    fail "no such file or folder: \`$source\`"
fi

folder_of() {
    case $1 in
        /*/*) printf '%s\n' "${1%/*}" ;;
        /*) printf '/\n' ;;
        */*) printf '%s\n' "${1%/*}" ;;
        *) printf '.\n' ;;
    esac
}

if [ -n "$package" ]; then
    beside=$(folder_of "$package")
    # A package that came alone still carries the sums of what is in it.
    if [ -f "$beside/SHA256SUMS" ]; then
        verify "$beside" "${package##*/}"
    fi
    mkdir "$work/unpacked"
    {
        gzip -dc <"$package" 2>/dev/null >"$work/package.tar" &&
            (cd "$work/unpacked" && tar xf ../package.tar 2>/dev/null)
    } || fail "\`$package\` is damaged: it cannot be unpacked; copy it again; nothing was changed"
    for found in "$work"/unpacked/*/bin/exec-server; do
        tree=${found%/bin/exec-server}
    done
    [ -f "$tree/bin/exec-server" ] || fail "\`$package\` is not a package of exec-server; nothing was changed"
fi

# The program is last: who sees the new one finds its pages too.
if [ -n "$tree" ]; then
    program=$tree/bin/exec-server
    : >"$work/names"
    while IFS= read -r name; do
        case $name in
            bin/exec-server) ;;
            *) printf '%s\n' "$name" >>"$work/names" ;;
        esac
    done <<NAMES
$NAMES
NAMES
    for page in "$tree"/share/man/man1/exec-server.1 "$tree"/share/man/man1/exec-server-*.1; do
        [ ! -f "$page" ] || printf '%s\n' "share/man/man1/${page##*/}" >>"$work/names"
    done
    printf 'bin/exec-server\n' >>"$work/names"
    while IFS= read -r name; do
        verify "$tree" "$name"
    done <"$work/names"
else
    verify "$(folder_of "$program")" "${program##*/}"
    printf 'bin/exec-server\n' >"$work/names"
fi

# Magic, 64 bits and little endian, and then the machine at offset 18 of the ELF header.
header=$(od -An -tx1 -N20 <"$program" | tr -d ' \n')
case $header in
    7f454c460201*3e00) made_for=x86_64 ;;
    7f454c460201*b700) made_for=aarch64 ;;
    7f454c46*) made_for='another kind of machine' ;;
    *) fail "\`$program\` is not a program for Linux; nothing was changed" ;;
esac
[ "$made_for" = "$machine" ] ||
    fail "this machine is $machine, and the program is for $made_for: take the package for $machine; nothing was changed"

while IFS= read -r name; do
    # A move would end inside it.
    [ ! -d "$prefix/$name" ] || fail "\`$prefix/$name\` is a folder and in the way; nothing was changed"
done <"$work/names"

staged=$work/staged
: >"$staged"
: >"$work/moves"
while IFS= read -r name; do
    place=$prefix/$name
    folder=${place%/*}
    mkdir -p -- "$folder" 2>/dev/null || fail "cannot make \`$folder\`: choose another place with \`--prefix DIR\`"
    fresh=$(mktemp "$folder/.exec-server.XXXXXX" 2>/dev/null) ||
        fail "cannot write to \`$folder\`: choose another place with \`--prefix DIR\`"
    printf '%s\n' "$fresh" >>"$staged"
    case $name in
        bin/exec-server)
            from=$program
            mode=755
            ;;
        *)
            from=$tree/$name
            mode=644
            ;;
    esac
    cat <"$from" >"$fresh" || fail "cannot write to \`$folder\`: is the disk full?"
    chmod "$mode" "$fresh"
    printf '%s\n%s\n' "$fresh" "$place" >>"$work/moves"
done <"$work/names"

# The last one staged is the program. It must run before it takes the place of one that does.
version=$("$fresh" --version </dev/null 2>"$work/trouble") || {
    cat "$work/trouble" >&2
    fail "the program does not run here; nothing was changed"
}
while IFS= read -r fresh && IFS= read -r place; do
    mv -f -- "$fresh" "$place" || fail "cannot write \`$place\`"
done <"$work/moves"
printf 'installed %s in %s\n' "$version" "$bin"

case $bin in
    "${HOME:-/}"/*) shown="\$HOME${bin#"$HOME"}" ;;
    *) shown=$bin ;;
esac
case :${PATH:-}: in
    *":$bin:"*)
        first=$(command -v exec-server || :)
        [ "$first" = "$bin/exec-server" ] ||
            say "\`exec-server\` still means \`$first\`, which comes first in PATH"
        ;;
    *)
        case ${SHELL:-} in
            */fish) say "\`$bin\` is not in PATH; once: fish_add_path $shown" ;;
            */zsh) say "\`$bin\` is not in PATH; add to ~/.zshenv: export PATH=\"$shown:\$PATH\"" ;;
            *) say "\`$bin\` is not in PATH; add to ~/.profile: export PATH=\"$shown:\$PATH\"" ;;
        esac
        ;;
esac
case ${SHELL:-} in
    */zsh)
        [ -z "$tree" ] ||
            say "zsh completions: add to ~/.zshrc, before compinit: fpath=(${shown%/bin}/share/zsh/site-functions \$fpath)"
        ;;
esac
