#!/bin/sh
# Slurm Prolog and Epilog of a node on which the user GCR_GUEST runs programs under gcr while no job needs the GPUs.
# The Prolog suspends them, the Epilog of the last job brings them back. In slurm.conf:
#   Prolog=/etc/slurm/slurm-prolog.sh
#   Epilog=/etc/slurm/slurm-epilog.sh       (a link to this file)
# Slurm drains a node whose Prolog fails. So this one never fails: what gcr says is in the log of the system.
set -u

guest=${GCR_GUEST:-guest}
seconds=${GCR_SECONDS:-60}

as_guest() {
    runuser -u "$guest" -- gcr --timeout "$seconds" "$@"
}

jobs_in_state() {
    as_guest --json ps | python3 -c '
import json, sys
print(*[job["job"] for job in json.load(sys.stdin)["jobs"] if job["state"] in sys.argv[1:]], sep="\n")' "$@"
}

# Each job by itself: one that is refused keeps no other on the device.
tell_each() {
    while read -r job; do
        [ -n "$job" ] || continue
        said=$(as_guest "$1" "$job" 2>&1 </dev/null) || said="exit $?: $said"
        logger -t gcr "$1 $job: $said"
    done
}

case $(basename "$0") in
    *epilog*)
        [ -n "$(squeue --noheader --nodelist "$(hostname -s)" --states running)" ] ||
            jobs_in_state suspended data_suspended | tell_each restore
        ;;
    *)
        jobs_in_state running | tell_each checkpoint
        ;;
esac
exit 0
