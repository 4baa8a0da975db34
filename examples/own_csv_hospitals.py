"""Your own table: patients of five hospitals in a CSV file, and a small sparse model for each hospital."""

import csv
import random
from pathlib import Path

import sparsona

random.seed(1)
with Path("patients.csv").open("w", newline="", encoding="utf-8") as file:
    table = csv.writer(file)
    table.writerow(["hospital", "age", "pressure", "ward", "outcome"])
    for i in range(600):
        hospital = random.choice(["Aachen", "Bergen", "Cork", "Delft", "Evora"])
        age, ward = random.randint(20, 90), random.choice(["surgery", "medicine", "stroke unit"])
        pressure = round(random.gauss(120 + age / 5, 12), 1)
        risk = age / 90 + (ward == "stroke unit") * (0.5 if hospital in ("Aachen", "Bergen") else -0.3)
        outcome = "ill" if risk + random.gauss(0, 0.15) > 0.75 else "well"
        table.writerow([hospital, age, pressure if i % 50 else "", ward, outcome])  # some pressures were not taken

data = {"source": "patients.csv", "label": "outcome", "client": "hospital", "missing": "mean"}
overrides = [f"data.{key}={value}" for key, value in data.items() if key != "source"]
for row in sparsona.show_data("patients.csv", overrides).rows:
    print(f"{row.client}: {row.train} to train, {row.validation} to validate, {row.test} to test; {row.labels}")

recipe = {"name": "patients", "rounds": 10, "data": data, "model": {"name": "mlp"}, "engine": {"name": "local"}}
for method in ({"name": "fedavg"}, {"name": "fedspa", "density": 0.5}):
    run = sparsona.run(sparsona.check_recipe({**recipe, "method": {"lr": 0.05, **method}}))
    print(f"{method['name']}: {run.summary['accuracy']:.1%} accuracy over hospitals")
