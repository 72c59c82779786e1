#!/bin/sh
# Take a rollout further, every ten minutes or so: to its next stage, back to nobody, or into the place of what is served.
#
#   examples/rollout.sh LOG                such as: examples/rollout.sh log.db
#
# Exit code 0: it advanced, or its candidate is served now; 3: it was rolled back; 4: the same, since neither harm nor
# its absence could be proven; 5: wait; 2: something to fix.
set -u
[ -e rollout.json ] || exit 5  # nothing is rolled out
lpi rollout judge rollout.json --log "$1" --json verdicts/rollout.json
answer=$?
if [ $answer -eq 0 ] && grep -q '"decision": "done"' verdicts/rollout.json; then
    day=$(sed -n 's/.*"export": ".*\/\(.*\)",*$/\1/p' rollout.json)
    [ "$(readlink deployed)" = "runs/$day" ] && exit 0  # it is served already
    rm -rf coming && cp -r "exports/$day" coming || exit 2  # whole first: the server finds it in its place at once
    rm -rf before && mv served before && mv coming served && ln -sfn "runs/$day" deployed || exit 2
fi
exit $answer
