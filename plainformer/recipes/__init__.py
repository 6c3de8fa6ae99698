"""What the recipes in scripts/run_*.py share, in the order of their steps.

    arguments    the command line
    run_folder   the folder of a run: what it holds, whether the run is new or is continued
    data_files   one reader for each file format (JSON's is in json_files, the lines of a text in lines)
    splits       files or a dataset of the Hub -> train, validation and test
    columns      finding and checking columns; labels
    label_lists  several labels a row: names, ids, or a 0 or 1 for each label
    models       tokenizer and model
    masking      rows and masks for masked-LM training
    reading      what a tokenizer does not read as it stands: special tokens, unknown characters
    truncation   how many texts were cut
    training     train, evaluate, predict
    generation   the same where the predictions are texts that the model generates
    metrics      one metric for each task

It needs the extra `train` (`pip install plainformer[train]`). Importing plainformer does not import this package.
"""
