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
# It prints five lines: the data, new items, the training, the judgement, and what follows. Messages of each step are in
# verdicts/DAY.log.
#
# Exit code 0: the new run is deployed (the link `deployed` points to it), or its rollout is planned; 3: it is not;
# 4: cannot be told, so it is not either; 5: it would be, and the rollout of an earlier one goes on; 7: it is worth a test
# online, and its first stage is planned; anything else: something to fix, and nothing has changed. Run again, it goes on
# where it stopped; a night that was never finished is made up for by the next.
set -u
day=$1 log=$2
columns=${COLUMNS_MAP:-sequence_id=session,item_id=product,event=what,timestamp=when}
rewards=${REWARDS:-buy=1.0,view=0.2}
training=${TRAINING:-"--objective auto"}         # lpi_cb, or lpi_rl if what is shown now may change later rewards
items=${ITEMS:+--items $ITEMS}                   # a table of all items that may be shown: new ones enter by it
[ -n "$items" ] && training="$training --set model.new_items=${NEW_ITEMS:-0.05}"  # at most; --floor shows them
first=${FIRST:-$(echo "$training" | sed 's/--objective [^ ]*/--objective mle/')}  # nobody judges it, so it imitates
rules=${RULES:+--rules $RULES}                   # a YAML file of the gate's rules, where the built-in ones do not fit
rollout=${ROLLOUT:-}                             # more words for `lpi rollout plan`, such as: --places 20 --window 7200
rotation=${ROTATION:-}                           # more words for `lpi rotate`, such as: --window 7200 --grace 86400
preparation=${PREPARATION:-}                     # more words for the first `lpi prepare`, such as: --test 0.2
seed=$(echo "$day" | cksum | cut -c1-6 | sed 's/^0*//')  # another one every day: one seed on both sides hides noise

tell() { echo "$day $1: $2"; }
field() {  # NAME FILE: the first one of this name in a JSON file, or with -1 the last
    sed -n "s/^ *\"$1\": \"\{0,1\}\([^\"]*[^\",]\)\"\{0,1\},\{0,1\}$/\1/p" "$2" | if [ -n "${3:-}" ]; then tail -n 1; else head -n 1; fi
}
moved() {  # how far a run moved from what it learnt from, and why
    [ -n "$(field chosen_by "runs/$day/manifest.json")" ] || return
    why=$(field said "runs/$day/manifest.json")
    case $why in
    "" | null) printf ': β %.3g, chosen by %s' "$(field beta "runs/$day/manifest.json")" \
        "$(field chosen_by "runs/$day/manifest.json")" ;;
    *) echo ": $why" ;;
    esac
}
run() {  # run FILE COMMAND...: stdout goes to FILE, messages to verdicts/DAY.log, and here if it fails
    out=$1 && shift
    began=$(wc -l < "$messages")
    "$@" > "$out" 2>> "$messages"
    code=$?
    case $code in 0 | 3 | 4 | 6 | 7) ;; *) tail -n "+$((began + 1))" "$messages" | tail -n 20 >&2 ;; esac
    return $code
}

mkdir -p data runs verdicts
messages=verdicts/$day.log
touch "$messages"
case $log in
*.db | postgresql://*)
    # shellcheck disable=SC2086
    run "verdicts/$day-rotation.txt" lpi rotate "$log" --out "events/$day" --rewards "$rewards" $rotation || exit $?
    if [ ! -e "data/$day" ]; then
        served=$(for one in exports/*; do echo "--run $one"; done)
        # shellcheck disable=SC2086
        run "verdicts/$day-audit.txt" lpi audit "events/$day" $served
        [ $? -eq 3 ] && { cat "verdicts/$day-audit.txt" >&2; exit 2; }  # a log that is not true teaches nothing
        if grep -qs '"kind": "impressions"' today/manifest.json; then  # what was prepared before is of a service too
            set -- --append today --new-only
        else
            # shellcheck disable=SC2086
            set -- --rewards "$rewards" $preparation
        fi
        # shellcheck disable=SC2086
        run "verdicts/$day-data.txt" lpi prepare events events/*/ "$@" $items --days "${DAYS:-28}" --out "data/$day" || exit $?
    fi
    ;;
*)
    if [ ! -e "data/$day" ]; then
        if [ -e today ]; then  # the data set of the last day that was taken
            set -- --append today
        else
            # shellcheck disable=SC2086
            set -- --rewards "$rewards" $preparation
        fi
        # shellcheck disable=SC2086
        run "verdicts/$day-data.txt" lpi prepare events "$log" --columns "$columns" "$@" $items --out "data/$day" || exit $?
    fi
    ;;
esac
known=0
[ -e today/manifest.json ] && known=$(field items today/manifest.json)
ln -sfn "data/$day" today
tell data "$(field sequences today/manifest.json) sequences ($(field kind today/manifest.json))"
tell items "$(field items today/manifest.json), $(($(field items today/manifest.json) - known)) of them new since the last round"

if [ "$(readlink deployed)" = "runs/$day" ]; then
    tell next "runs/$day is deployed already"
    exit 0
elif [ -e deployed ]; then
    # shellcheck disable=SC2086
    run "verdicts/$day-training.txt" \
        lpi train "data/$day" $training --seed "$seed" --warm-start deployed --out "runs/$day" --resume || exit $?
else
    # shellcheck disable=SC2086
    run "verdicts/$day-training.txt" lpi train "data/$day" $first --seed "$seed" --out "runs/$day" --resume || exit $?
fi
tell training "$(field objective "runs/$day/manifest.json") in $(field seconds "runs/$day/manifest.json" -1) s$(moved)"
if [ ! -e deployed ]; then
    ln -sfn "runs/$day" deployed
    tell judgement "none: the first run has nobody to be judged against"
    tell next "runs/$day is deployed"
    exit 0
fi

against=deployed
case $log in
*.db | postgresql://*)  # one that learnt from what people did is judged as what wrote the log
    grep -qs '"kind": "interactions"' deployed/manifest.json && against=log
    ;;
esac
# shellcheck disable=SC2086
run "verdicts/$day.txt" \
    lpi gate "runs/$day" --against $against --data "data/$day" $rules --json "verdicts/$day.json"
answer=$?
[ -e "verdicts/$day.json" ] && tell judgement "$(field sentence "verdicts/$day.json")"
case $answer in
0 | 7) ;;
3 | 4 | 6) tell next "$(readlink deployed) stays: $(field next_step "verdicts/$day.json")" && exit $answer ;;
*) exit $answer ;;
esac
past=
case $log in
*.db | postgresql://*) past="--log $log --log events" ;;
*) if [ $answer -eq 0 ]; then
    ln -sfn "runs/$day" deployed
    tell next "runs/$day is deployed"
    exit 0
fi ;;
esac
if grep -qs "exports/$day\"" rollout.json; then
    tell next "its rollout is in rollout.json already"
    exit $answer
fi
if [ -e rollout.json ] && ! grep -Eq '"done": true|"stage": "rolled back"' rollout.json; then
    tell next "rollout.json holds a rollout that goes on: runs/$day waits for nobody, a later night makes another"
    exit 5
fi
[ -e "exports/$day" ] || run "verdicts/$day-export.txt" lpi export "runs/$day" --out "exports/$day" || exit $?
# shellcheck disable=SC2086
run "verdicts/$day-rollout.txt" \
    lpi rollout plan "exports/$day" --out rollout.json $past --rewards "$rewards" $rollout || exit $?
tell next "a rollout of runs/$day begins with $(field stage rollout.json) % of the people"
exit $answer
