"""Studies: the choices of a model against each other, trained on tasks that are small enough for a laptop.

The way of a study: cells and seeds (`study`, and a file for each) -> trained models (`tasks`, `training`) -> a row of a
CSV for each (`runner`, `results`) -> means and intervals (`intervals`) -> sentences and `pictures` (`statements`) ->
tables and the page docs/choosing.md (`tables`, `points`). `scripts/compare.py` is the command.
"""
