#!/bin/sh
# Submits a run to a Ray cluster from outside, with the files of this folder.
#
#     export RAY_API_SERVER_ADDRESS=http://HEAD:8265   # Ray's dashboard, which takes jobs
#     RUNS=/shared/runs sh examples/ray_job.sh ppo --env CartPole-v1 --distribute actor_learner:actors=4
#
# hocket and ray must be installed on every node. The run is kept in RUNS, which the head of the
# cluster must see and which must outlast Ray: the folder in which a job works does not.
set -eu
: "${RUNS:?name a folder that lasts, such as RUNS=/shared/runs}"
exec ray job submit --working-dir . -- hocket train "$@" --cluster ray --runs "$RUNS"
