"""Sharing a saved model.

`files.py` says which files go to the Hub, `stranger.py` whether a stranger can use them (a process without plainformer
runs it), `card.py` writes the model card, and `push.py` puts the steps together.
"""
