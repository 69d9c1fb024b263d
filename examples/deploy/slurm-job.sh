#!/bin/sh
# A Slurm job of one node that goes on where its time ended: its program is saved to an image two minutes before, and the
# job is put into the queue again. Save it as a file, then: sbatch slurm-job.sh python train.py
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
# `B:` has Slurm signal this script alone. The store (GCR_STORE) must be one that every node of the partition reaches.
# An image of a whole process needs CRIU's rights: docs/whole-processes.md.
set -u

job=${SLURM_JOB_NAME:-train}
images=$job-${SLURM_JOB_ID:?this is a job of Slurm}.

# The number of the newest image of this job; 0: there is none.
newest() {
    gcr --json images | python3 -c '
import json, sys
names = [image["name"] for image in json.load(sys.stdin)["images"]]
print(max([0, *(int(name[len(sys.argv[1]):]) for name in names if name.startswith(sys.argv[1]))]))' "$images"
}

# The program runs on if it cannot be saved; then the job ends as it would without gcr.
# shellcheck disable=SC2329  # the trap calls it
save() {
    told=yes
    if gcr checkpoint "$job" --image "$images$((last + 1))" --stop --wait durable; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
}

last=$(newest) || exit
told=
trap save USR1
if [ "$last" -gt 0 ]; then
    gcr restore --image "$images$last" --attach &
else
    gcr run --name "$job" -- "$@" &
fi
program=$!
wait "$program"
code=$?
while [ -n "$told" ] && [ "$code" -gt 128 ]; do # the signal may have ended the wait alone
    told=
    wait "$program"
    again=$?
    [ "$again" -eq 127 ] || code=$again # 127: the wait before had the program's own code
done
exit "$code"
