"""Whether the layout that is predicted to be the fastest is: of rows of one model, batch and number of cards, what the chosen one cost more than the best
of those that were rehearsed.

    python records/layouts/choice.py TABLE.csv...
"""

import csv
import sys
from collections import defaultdict

groups = defaultdict(dict)
for table in sys.argv[1:]:
    for row in csv.DictReader(open(table)):
        of = tuple(row[name] for name in ("gpus", "batch", "hidden", "layers"))
        layout = tuple(row[name] for name in ("tp", "dp", "pp", "micro"))
        groups[of][layout] = float(row["predicted_ms"]), float(row["measured_ms"])
costs = []
for of, layouts in groups.items():
    if len(layouts) > 1:
        costs.append(min(layouts.values())[1] / min(measured for _, measured in layouts.values()) - 1)
        print(*of, f"{len(layouts)} layouts: the chosen one costs {costs[-1]:+.1%}")
within = sum(cost <= 0.05 for cost in costs)
print(f"{within} of {len(costs)} within 5 % of the best, the worst {max(costs):+.1%}")
