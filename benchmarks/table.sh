#!/usr/bin/env bash
# The CPU's part of the speed table in one sitting: half an hour on two cores with nothing else to do.
#   benchmarks/table.sh OUT [RECTOOLS_PYTHON [REPLAY_PYTHON]]      prints Markdown, keeps every figure under OUT
# BEAUTY names the folder of Amazon Beauty; without it the time to quality is left out.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$1; rectools=${2:-}; replay=${3:-}; mkdir -p "$out"
python=.venv/bin/python
peers=(); [ -n "$rectools" ] && peers+=(--rectools "$rectools"); [ -n "$replay" ] && peers+=(--replay "$replay")
part() { echo; echo "### $1"; shift; timeout "$1" "${@:2}" 2>"$out/errors.txt" || { echo "failed ($?):"; tail -2 "$out/errors.txt"; }; }
echo "$(date -u +%F), $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg)"
part "training, beside peers" 400 $python benchmarks/training.py cpu --sequences 5120 --rounds 1 "${peers[@]}" --out "$out/cpu.json"
part "a step's overhead, one thread" 90 $python benchmarks/training.py overhead --sequences 2560 --threads 1 --out "$out/overhead.json"
part "two processes" 90 $python benchmarks/processes.py processes --rounds 1
part "lists of 1,000,000 items, one thread" 60 env OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
  $python benchmarks/serving.py lists --items 1000000 --threads 1 --repeats 20
part "the service, 50,000 items" 60 $python benchmarks/serving.py load --seconds 10
lists=(); [ -n "$rectools" ] && lists+=("rectools=$rectools"); [ -n "$replay" ] && lists+=("replay=$replay")
part "lists of lpi recommend, beside peers" 300 $python benchmarks/lists.py "${lists[@]}"
[ -n "${BEAUTY:-}" ] && part "time to quality" 1500 $python benchmarks/time_to_quality.py --raw "$BEAUTY" --out "$out/quality" \
  --device cpu ${rectools:+--rectools "$rectools"}
echo; echo "load at the end: $(cut -d' ' -f1 /proc/loadavg)"
