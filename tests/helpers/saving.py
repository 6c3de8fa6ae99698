"""What tests of saving and loading share."""

import transformers


def auto_class(model_class: type) -> type:
    """The Auto class that opens this class: `AutoModelForMaskedLM` for `PlainformerForMaskedLM`."""
    return getattr(
        transformers, model_class.__name__.replace("Plainformer", "AutoModel").replace("ModelModel", "Model")
    )
