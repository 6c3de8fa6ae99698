"""transformers' `MarianMTModel` with the weights of an encoder-decoder of ours: what it is compared with."""

import torch
from transformers import MarianConfig, MarianMTModel

from plainformer import PlainformerForConditionalGeneration

# Their names of modules, and ours.
NAMES = {
    "model.encoder": "plainformer",
    "model.decoder": "decoder",
    "self_attn.": "attention.",
    "encoder_attn.": "cross_attention.",
    "out_proj": "o_proj",
    "self_attn_layer_norm": "attn_norm",
    "encoder_attn_layer_norm": "cross_attn_norm",
    "final_layer_norm": "mlp_norm",
    "fc": "mlp.fc",
}


def make_marian(model: PlainformerForConditionalGeneration) -> MarianMTModel:
    """Marian with the weights and the sizes of a model, in evaluation mode.

    Marian lays out sines and cosines in another order than Vaswani et al. 2017. So `model` has learned positions, which
    become Marian's, frozen. Its segment embeddings become zero: Marian has none.

    Args:
        model: post-norm, with learned positions, `scale_embedding=True`, `embedding_norm=False` and
            `layer_norm_eps=1e-5`, as Marian is.
    """
    config = model.config
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.hidden_size,
            encoder_layers=config.num_hidden_layers,
            decoder_layers=config.decoder_depth,
            encoder_attention_heads=config.num_attention_heads,
            decoder_attention_heads=config.num_attention_heads,
            encoder_ffn_dim=config.intermediate_size,
            decoder_ffn_dim=config.intermediate_size,
            activation_function=config.hidden_act,
            dropout=config.hidden_dropout_prob,
            attention_dropout=config.attention_probs_dropout_prob,
            scale_embedding=True,
            max_position_embeddings=config.max_position_embeddings,
            pad_token_id=config.pad_token_id,
            decoder_start_token_id=config.decoder_start_token_id,
            eos_token_id=config.eos_token_id,
            forced_eos_token_id=None,
        )
    )
    with torch.no_grad():
        for name, parameter in marian.named_parameters():
            if "embed_positions" in name:
                side = model.plainformer if "encoder" in name else model.decoder
                side.embeddings.position_embeddings.weight.copy_(parameter)
                side.embeddings.position_embeddings.weight.requires_grad_(False)
            elif name == "model.shared.weight":
                parameter.copy_(model.get_input_embeddings().weight)
            else:
                parameter.copy_(model.get_parameter(our_name(name)))
        model.plainformer.embeddings.token_type_embeddings.weight.zero_()
    return marian.eval()


def our_name(name: str) -> str:
    """The name of a parameter here, by its name in Marian."""
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name
