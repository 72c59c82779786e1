#!/bin/sh
# The daily round: take a day's log, train, judge against what is deployed on the same newer rows, and roll it out.
#
#   examples/daily.sh DAY LOG              such as: examples/daily.sh 2026-11-16 logs/2026-11-16.csv
#                                          or, from a service: examples/daily.sh 2026-11-16 log.db
#
# LOG is a file of events, or the log of `lpi serve served --rollout rollout.json --log LOG`. Of a service's log the last
# DAYS days are trained on, and a run that passes gets a rollout, which examples/rollout.sh takes further. So does a run
# that is worth a test online, whatever its log: what people chose themselves never deploys it.
#
# Exit code 0: the new run is deployed (the link `deployed` points to it), or its rollout is planned; 3: it is not;
# 4: cannot be told, so it is not either; 5: it would be, and the rollout of an earlier one goes on; 7: it is worth a test
# online, and its first stage is planned; anything else: something to fix, and nothing has changed. Run again, it goes on
# where it stopped; a night that was never finished is made up for by the next.
set -u
day=$1 log=$2
columns=${COLUMNS_MAP:-sequence_id=session,item_id=product,event=what,timestamp=when}
rewards=${REWARDS:-buy=1.0,view=0.2}
training=${TRAINING:-"--objective mle"}          # or: --objective lpi_rl
rules=${RULES:+--rules $RULES}                   # a YAML file of the gate's rules, where the built-in ones do not fit
rollout=${ROLLOUT:-}                             # more words for `lpi rollout plan`, such as: --places 20 --window 7200
rotation=${ROTATION:-}                           # more words for `lpi rotate`, such as: --window 7200 --grace 86400
preparation=${PREPARATION:-}                     # more words for the first `lpi prepare`, such as: --test 0.2
seed=$(echo "$day" | cksum | cut -c1-6 | sed 's/^0*//')  # another one every day: one seed on both sides hides noise

mkdir -p data runs verdicts
case $log in
*.db | postgresql://*)
    # shellcheck disable=SC2086
    lpi rotate "$log" --out "events/$day" --rewards "$rewards" $rotation || exit $?
    if [ ! -e "data/$day" ]; then
        served=$(for one in exports/*; do echo "--run $one"; done)
        # shellcheck disable=SC2086
        lpi audit "events/$day" $served > "verdicts/$day-audit.txt"
        [ $? -eq 3 ] && { cat "verdicts/$day-audit.txt" >&2; exit 2; }  # a log that is not true teaches nothing
        if grep -qs '"kind": "impressions"' today/manifest.json; then  # what was prepared before is of a service too
            set -- --append today --new-only
        else
            # shellcheck disable=SC2086
            set -- --rewards "$rewards" $preparation
        fi
        lpi prepare events events/*/ "$@" --days "${DAYS:-28}" --out "data/$day" || exit $?
    fi
    ;;
*)
    if [ -e "data/$day" ]; then
        :
    elif [ -e today ]; then  # the data set of the last day that was taken
        lpi prepare events "$log" --append today --columns "$columns" --out "data/$day" || exit $?
    else
        lpi prepare events "$log" --columns "$columns" --rewards "$rewards" --out "data/$day" || exit $?
    fi
    ;;
esac
ln -sfn "data/$day" today

if [ "$(readlink deployed)" = "runs/$day" ]; then
    exit 0  # this day's round is done, and its run is deployed
elif [ -e deployed ]; then
    # shellcheck disable=SC2086
    lpi train "data/$day" $training --seed "$seed" --warm-start deployed --out "runs/$day" --resume || exit $?
else
    # shellcheck disable=SC2086
    lpi train "data/$day" $training --seed "$seed" --out "runs/$day" --resume || exit $?
    ln -sfn "runs/$day" deployed  # the first one has nobody to be judged against
    exit 0
fi

against=deployed
case $log in
*.db | postgresql://*)  # one that learnt from what people did is judged as what wrote the log
    grep -qs '"kind": "interactions"' deployed/manifest.json && against=log
    ;;
esac
# shellcheck disable=SC2086
lpi gate "runs/$day" --against $against --data "data/$day" $rules --json "verdicts/$day.json" > "verdicts/$day.txt"
answer=$?
[ $answer -eq 0 ] || [ $answer -eq 7 ] || exit $answer
past=
case $log in
*.db | postgresql://*) past="--log $log --log events" ;;
*) if [ $answer -eq 0 ]; then
    ln -sfn "runs/$day" deployed
    exit 0
fi ;;
esac
grep -qs "exports/$day\"" rollout.json && exit $answer  # it was planned before
if [ -e rollout.json ] && ! grep -Eq '"done": true|"stage": "rolled back"' rollout.json; then
    echo "rollout.json holds a rollout that goes on: runs/$day waits for nobody, a later night makes another" >&2
    exit 5
fi
[ -e "exports/$day" ] || lpi export "runs/$day" --out "exports/$day" || exit $?
# shellcheck disable=SC2086
lpi rollout plan "exports/$day" --out rollout.json $past --rewards "$rewards" $rollout || exit $?
exit $answer
