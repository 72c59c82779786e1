#!/bin/sh
# The daily round: take a day's log, train on all days, judge against what is deployed on the same newer rows.
#
#   examples/daily.sh DAY LOG.csv          such as: examples/daily.sh 2026-11-16 logs/2026-11-16.csv
#
# Exit code 0: the new run is deployed (the link `deployed` points to it); 3: it is not; 4: cannot be told, so it is
# not either; anything else: something to mend, and nothing has changed. Run again, it goes on where it stopped.
set -u
day=$1 log=$2
columns=${COLUMNS_MAP:-sequence_id=session,item_id=product,event=what,timestamp=when}
rewards=${REWARDS:-buy=1.0,view=0.2}
training=${TRAINING:-"--objective mle"}          # or: --objective lpi_rl
rules=${RULES:+--rules $RULES}                   # a YAML file of the gate's rules, where the built-in ones do not fit
seed=$(echo "$day" | cksum | cut -c1-6 | sed 's/^0*//')  # another one every day: one seed on both sides hides noise

mkdir -p data runs verdicts
if [ ! -e "data/$day" ]; then
    if [ -e today ]; then  # the data set of the last day that was taken
        lpi prepare events "$log" --append today --columns "$columns" --out "data/$day" || exit $?
    else
        lpi prepare events "$log" --columns "$columns" --rewards "$rewards" --out "data/$day" || exit $?
    fi
fi
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

# shellcheck disable=SC2086
lpi gate "runs/$day" --against deployed --data "data/$day" $rules --json "verdicts/$day.json" > "verdicts/$day.txt"
answer=$?
[ $answer -eq 0 ] && ln -sfn "runs/$day" deployed
exit $answer
