#!/usr/bin/env bash
# Runs the tests of the ClickHouse engine; they start real ones on ports 18100 to 18199. Arguments go to pytest.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source-path=SCRIPTDIR source=../lib.sh
source "$HERE/../lib.sh"
VENV="${STROBE_CLICKHOUSE_VENV:-$STROBE_HOME/venv}"
"$HERE/engine.sh" install-dev --venv "$VENV"
cd "$HERE"
PYTHONPATH="$HERE" PYTHONDONTWRITEBYTECODE=1 exec "$VENV/bin/python" -m pytest -q -p no:cacheprovider tests "$@"
