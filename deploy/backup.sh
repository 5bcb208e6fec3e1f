#!/usr/bin/env bash
# Backup and restore of a single node; see docs/backup.md.
#
#   backup.sh save DATA_DIR BACKUPS     copies a node's data directory, running or not, to a new directory in BACKUPS
#   backup.sh check COPY                starts a node on a copy of the copy, says what it found, and stops it
#   backup.sh restore COPY DATA_DIR     puts a copy in the place of the data directory of a node that does not run
#
# In the environment: KEEP=7, copies that save keeps; FREEZE_MAX=2, s for which the node may stand still meanwhile;
# START_S=300, s that a start may take in check.
set -euo pipefail
umask 077

keep=${KEEP:-7}
freeze_max=${FREEZE_MAX:-2}
start_s=${START_S:-300}

fail() {
    echo "backup.sh: $*" >&2
    exit 1
}

now() {
    date -u +%Y%m%dT%H%M%SZ
}

# mqd-backup reports that on stderr.
of_a_cluster() {
    grep -q "directory of a cluster's node" "$1"
}

save() {
    local data=$1 backups=$2 copy told name
    [[ $keep =~ ^[1-9][0-9]*$ ]] || fail "KEEP=$keep is no number above 0"
    mkdir -p "$backups"
    name=mqd-$(now)
    copy=$backups/$name
    told=$(mktemp)
    # Under another name until it is complete.
    if ! mqd-backup --freeze-max "$freeze_max" "$data" "$copy.part" >/dev/null 2>"$told"; then
        cat "$told" >&2
        rm -f "$told"
        fail "no copy was made"
    fi
    if of_a_cluster "$told"; then
        cat "$told" >&2
    fi
    rm -f "$told"
    sync -f "$copy.part"
    mv -T "$copy.part" "$copy"
    # Names sort by time. Other directories are left alone.
    find "$backups" -mindepth 1 -maxdepth 1 -type d -regextype egrep -regex '.*/mqd-[0-9]{8}T[0-9]{6}Z' |
        sort | head -n "-$keep" | while read -r old; do
        rm -rf -- "$old"
    done
    echo "$copy"
}

check() {
    local copy=$1 place pid line='' code=0
    [[ -f $copy/main/data.mdb ]] || fail "$copy is no data directory of mqd"
    # A node writes to its directory, so it gets a copy of the copy.
    place=$(mktemp -d -- "$copy.check-XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf -- '$place'" EXIT
    cp -a --reflink=auto -- "$copy" "$place/data"
    mkfifo "$place/ready"
    # Without the real node's configuration: other ports, no other nodes, no users from definitions.
    env -i PATH="$PATH" HOME="$place" mqd --data-dir "$place/data" --amqp 127.0.0.1:0 --http 127.0.0.1:0 \
        --disk-free-min-bytes 0 >"$place/ready" 2>"$place/log" &
    pid=$!
    # This also ends when the node ends.
    read -r -t "$start_s" line <"$place/ready" || true
    kill "$pid" 2>/dev/null || true
    wait "$pid" || code=$?
    if [[ $line != "mqd ready"* ]] || ((code != 0)); then
        tail -n 20 "$place/log" >&2
        fail "no node can be started with $copy (code $code)"
    fi
    grep -o 'recovered .*' "$place/log" || echo "recovered nothing"
}

restore() {
    local copy=$1 data=$2 told owner
    # For a user that systemd creates, /var/lib has a link to the directory.
    data=$(readlink -f -- "$data")
    [[ -f $copy/main/data.mdb ]] || fail "$copy is no data directory of mqd"
    [[ ! -e $data.part ]] || fail "$data.part is there already: an earlier restore did not end"
    if [[ -e $data/lock ]] && ! flock -n -E 9 "$data/lock" true; then
        fail "a node runs on $data: stop it first"
    fi
    told=$(mktemp)
    # mqd-backup reads the files that it copies, so a damaged copy is refused before anything is moved.
    if ! mqd-backup "$copy" "$data.part" >/dev/null 2>"$told"; then
        cat "$told" >&2
        rm -rf -- "$told" "$data.part"
        fail "$copy can't be restored; $data is as it was"
    fi
    if of_a_cluster "$told"; then
        rm -rf -- "$told" "$data.part"
        fail "$copy is of a cluster's node, and must not be put back alone; $data is as it was"
    fi
    rm -f "$told"
    if [[ -e $data ]]; then
        owner=$(stat -c %u:%g -- "$data")
        chown -R "$owner" -- "$data.part"
        mv -T -- "$data" "$data.before-$(now)"
    fi
    mv -T -- "$data.part" "$data"
    sync -f "$data"
}

case "${1-}/$#" in
save/3) save "$2" "$3" ;;
check/2) check "$2" ;;
restore/3) restore "$2" "$3" ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 64
    ;;
esac
