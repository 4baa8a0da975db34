"""Regression on a table: house prices in eight towns, where a square metre does not cost the same everywhere."""

import csv
import random
from pathlib import Path

import sparsona

random.seed(1)
with Path("houses.csv").open("w", newline="", encoding="utf-8") as file:
    table = csv.writer(file)
    table.writerow(["town", "area", "rooms", "garden", "price"])
    for number in range(8):
        metre = random.uniform(1.0, 6.0)  # the price of a square metre in this town, in thousands
        for _ in range(60):
            area, garden = random.uniform(40, 200), random.choice(["yes", "no"])
            price = metre * area / 100 + 0.5 * (garden == "yes") + random.gauss(0, 0.1)
            table.writerow([f"town {number}", round(area, 1), max(1, round(area / 30)), garden, round(price, 3)])

recipe = {
    "name": "houses",
    "rounds": 20,
    "data": {"source": "houses.csv", "label": "price", "client": "town"},
    "model": {"name": "mlp"},
    "task": {"loss": "mse", "metrics": ["rmse", "r2"]},
    "engine": {"name": "local"},
}
for method in ("fedavg", "ditto"):
    run = sparsona.run(sparsona.check_recipe({**recipe, "method": {"name": method, "lr": 0.05}}))
    score = run.summary["before"]
    print(f"{method}: RMSE {score['rmse']:.2f}, R2 {score['r2']:.2f}, in the worst town {score['worst']:.2f}")
