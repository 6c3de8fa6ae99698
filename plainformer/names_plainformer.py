"""Keywords of the configuration that nothing would read, and what was meant.

`PretrainedConfig` keeps whatever it is given. A field that is called otherwise here would change nothing, unseen.
"""

import difflib
from collections.abc import Collection
from typing import Any

from transformers.utils import logging

logger = logging.get_logger(__name__)

# What fields of ours are called in torch.nn, Keras, x-transformers, fairseq and other models of transformers. A name
# that means one thing here and another there stands at both.
_ELSEWHERE = {
    "vocab_size": "n_words n_src_vocab input_vocab_size n_vocab vocab vocabulary_size vocab_len num_embeddings "
    "num_tokens n_tokens n_token ntoken ntokens "
    "src_vocab_size source_vocab_size input_dim",
    "hidden_size": "ninp d_word_vec d_model dim model_dim dim_model embed_dim embedding_dim embed_size "
    "embedding_size emb_dim "
    "emb_size n_embd n_embed d_embed d_embedding encoder_embed_dim hidden_dim hidden width d_hidden "
    "encoder_hidden_size",
    "num_hidden_layers": "nb_layers n_block num_layers n_layers n_layer nlayers layers num_layer depth "
    "encoder_layers "
    "num_encoder_layers n_encoder_layers encoder_depth num_blocks n_blocks num_transformer_layers",
    "num_attention_heads": "nb_heads nhead nheads num_heads n_heads n_head num_head heads attention_heads "
    "encoder_attention_heads num_encoder_attention_heads n_attention_heads",
    "intermediate_size": "nhid d_hid forward_expansion inner_size ffn_embed_dim ffn_ratio dim_feedforward d_ff "
    "ff_dim ffn_dim d_inner n_inner hidden_dim encoder_ffn_dim ff_size "
    "encoder_ffn_embed_dim feedforward_dim feed_forward_dim feedforward_size ffn_size ffn_hidden_size ff_mult "
    "mlp_ratio mlp_dim inner_dim dim_ff filter_size pf_dim intermediate_dim",
    "hidden_act": "gelu_activation activation activation_function activation_fn act act_fn hidden_activation "
    "ff_activation "
    "feed_forward_proj dense_act_fn",
    "hidden_dropout_prob": "embedding_dropout_prob emb_pdrop dropact dropout dropout_rate dropout_prob "
    "dropout_p p_dropout hidden_dropout embd_pdrop "
    "resid_pdrop embed_dropout emb_dropout embedding_dropout ff_dropout ffn_dropout mlp_dropout activation_dropout "
    "relu_dropout residual_dropout drop_rate",
    "attention_probs_dropout_prob": "dropatt attention_dropout attn_dropout attn_pdrop attention_dropout_prob "
    "attention_dropout_rate attn_dropout_prob attn_drop",
    "max_position_embeddings": "maximum_position_encoding pe_input model_max_len max_len max_seq_len "
    "max_seq_length max_sequence_length maxlen max_source_positions "
    "max_positions max_position num_positions n_positions n_ctx context_length context_size context_len block_size "
    "seq_len seq_length sequence_length max_tokens num_position_embeddings max_num_positions n_position",
    "type_vocab_size": "num_segments n_segments num_types num_token_types segment_vocab_size n_langs",
    "initializer_range": "init_std initializer_std embed_init_std weight_init_std initializer_stddev std",
    "layer_norm_eps": "norm_eps eps epsilon layernorm_eps layernorm_epsilon rms_norm_eps ln_eps",
    "pad_token_id": "src_pad_idx padding_token_id pad_tok_id pad_idx padding_idx pad_id pad_index pad_token "
    "padding_index",
    "classifier_dropout": "qa_dropout classifier_dropout_prob seq_classif_dropout summary_last_dropout "
    "pooler_dropout "
    "head_dropout classification_dropout",
    "tie_word_embeddings": "untie_embed tie_weights weight_tying tie_embeddings tied_embeddings share_embeddings "
    "share_input_output_embed share_all_embeddings",
    "position_embedding_type": "position_embedding position_embeddings positional_embedding positional_encoding "
    "pos_emb pos_embed pos_encoding pos_embedding position_encoding position_type positional_embedding_type "
    "pos_emb_type sinusoidal_pos_embds encoder_learned_pos use_abs_pos_emb position_encoding_type sinusoidal "
    "use_learned_positions rotary rotary_pos_emb rotary_emb use_rope alibi alibi_pos_bias use_alibi rel_pos_bias "
    "relative_attention use_relative_positions pos_att_type",
    "rope_theta": "rope_base rotary_emb_base rotary_base global_rope_theta local_rope_theta",
    "relative_attention_num_buckets": "position_buckets num_buckets rel_attn_bins",
    "relative_attention_max_distance": "max_relative_positions rel_max_distance",
    "randomize_positions": "randomized_positions random_positions",
    "pre_norm": "norm_first normalize_before encoder_normalize_before pre_ln preln pre_layer_norm prenormalization "
    "do_layer_norm_before norm_position post_norm",
    "embedding_norm": "layernorm_embedding emb_norm post_emb_norm normalize_embedding embed_norm layer_norm_embedding",
    "scale_embedding": "scale_embeddings scale_emb embed_scale no_scale_embedding embedding_scale",
    "classifier_pooling": "pooler_type pooling pooling_mode pooling_strategy pool pool_type pooling_type summary_type",
    "unpad_inputs": "unpad use_unpadding unpadded",
    "problem_type": "loss_type task_type",
    "num_labels": "num_classes n_classes nclasses n_labels num_class output_dim classes",
    "id2label": "label_names class_names labels",
    "attn_implementation": "use_fa2 attn_flash use_flash_attention use_flash_attn flash_attention use_sdpa "
    "attention_implementation",
}


def _squash(name: str) -> str:
    """`maxSeqLen`, `max_seq_len` and `max-seq-len` are one name."""
    return name.lower().replace("_", "").replace("-", "")


NAMES_ELSEWHERE: dict[str, tuple[str, ...]] = {}  # by squashed name
for _field, _names in _ELSEWHERE.items():
    for _name in map(_squash, [_field, *_names.split()]):
        NAMES_ELSEWHERE[_name] = tuple(dict.fromkeys((*NAMES_ELSEWHERE.get(_name, ()), _field)))

# What other encoders let one choose, and this one does not.
_WITHOUT_CHOICE = {
    "the batch is always the first dimension": "batch_first",
    "linear layers and norms always have a bias": "bias use_bias qkv_bias attention_bias mlp_bias norm_bias "
    "add_bias_kv",
    "each head is hidden_size / num_attention_heads wide": "head_dim dim_head head_size key_dim value_dim d_kv "
    "d_head "
    "d_k d_v kdim vdim attention_head_size",
    "an encoder sees both sides; who attends to whom is said by an attention_mask [B, L, L]": "is_causal causal "
    "bidirectional causal_mask",
    "rotary positions turn all columns of a head, by angles that are not scaled": "rope_scaling rope_parameters "
    "rotary_dim rotary_pct partial_rotary_factor",
    "only a PlainformerSeq2SeqConfig has a decoder, of num_decoder_layers, and both halves are equally wide": ""
    "num_decoder_layers decoder_layers decoder_attention_heads decoder_ffn_dim decoder_embed_dim tgt_vocab_size "
    "target_vocab_size max_target_positions",
    "each token attends to all others": "attention_window sliding_window local_attention global_attn_every_n_layers "
    "num_key_value_heads num_kv_heads attention_type",
    "each layer is of the same kind, and always computed": "layerdrop layer_drop encoder_layerdrop drop_path "
    "drop_path_rate stochastic_depth num_hidden_groups share_layers",
}
WITHOUT_CHOICE = {_squash(name): reason for reason, names in _WITHOUT_CHOICE.items() for name in names.split()}

# What transformers gives a meaning to, in one of its versions: 4.57 has defaults for generation in every configuration.
OF_TRANSFORMERS = set(
    "model_type output_hidden_states output_attentions output_scores return_dict use_return_dict torchscript "
    "dtype torch_dtype "
    "pruned_heads tie_word_embeddings chunk_size_feed_forward is_encoder_decoder is_decoder "
    "cross_attention_hidden_size add_cross_attention tie_encoder_decoder architectures finetuning_task id2label "
    "label2id num_labels problem_type task_specific_params tokenizer_class model_max_length prefix name_or_path "
    "attn_implementation transformers_version experts_implementation gradient_checkpointing tf_legacy_loss "
    "use_bfloat16 use_cache auto_map quantization_config custom_pipelines per_layer_config return_dict_in_generate "
    "max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k "
    "top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size "
    "bad_words_ids num_return_sequences remove_invalid_values exponential_decay_length_penalty suppress_tokens "
    "begin_suppress_tokens epsilon_cutoff eta_cutoff encoder_repetition_penalty num_assistant_tokens "
    "num_assistant_tokens_schedule assistant_confidence_threshold assistant_lookbehind target_lookbehind".split()
)


def warn_about_unread(
    config_name: str, given: dict[str, Any], fields: Collection[str], *, warns_about_strange: bool = True
) -> None:
    """Warn about keywords that nothing reads: each that resembles a field with that field, the others in one line.

    Args:
        given: keywords of a configuration and their values.
        fields: those that the configuration has.
        warns_about_strange: also about what resembles nothing.
    """
    strange = []
    for name, value in given.items():
        if name in fields or name in OF_TRANSFORMERS or name.startswith("_"):
            continue
        if meaning := _explain(name, fields):
            logger.warning(f"{config_name} does not know {name!r} and ignores its value {value!r}: {meaning}")
        elif not name.endswith("_token_id"):  # other special tokens
            strange.append(repr(name))
    if strange and warns_about_strange:
        logger.warning(f"{config_name} keeps {', '.join(strange)}, which nothing in Plainformer reads.")


def _explain(name: str, fields: Collection[str]) -> str | None:
    """What somebody may have meant who wrote this name; None where it resembles nothing."""
    if reason := WITHOUT_CHOICE.get(_squash(name)):
        return f"nothing reads it, since {reason}."
    meant = NAMES_ELSEWHERE.get(_squash(name), ())
    if not meant and not name.endswith("_token_id"):  # `bos_token_id` is no slip for `pad_token_id`
        meant = difflib.get_close_matches(name, fields, n=1, cutoff=0.85)
    return f"did you mean {' or '.join(map(repr, meant))}?" if meant else None
