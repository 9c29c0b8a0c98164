"""Public implementations, each brought to the contract of apply_rope in a file of its own."""

# What --impl calls them, and where they are.
ADAPTERS: dict[str, str] = {
    "rope-interpreted": "properties.adapters.interpreted:interpreted",
    "hugging-face": "properties.adapters.hugging_face:hugging_face",
    "hugging-face-compiled": "properties.adapters.hugging_face:compiled",
    "liger": "properties.adapters.liger:liger",
    "liger-16-bit-table": "properties.adapters.liger:with_16_bit_table",
    "flash-linear-attention": "properties.adapters.flash_linear_attention:flash_linear_attention",
    "flash-linear-attention-in-place": "properties.adapters.flash_linear_attention:in_place",
    "flash-attention": "properties.adapters.flash_attention:flash_attention",
    "rotary-embedding-torch": "properties.adapters.rotary_embedding_torch:rotary_embedding_torch",
    "vllm": "properties.adapters.vllm:vllm",
    "flashinfer": "properties.adapters.flashinfer:flashinfer",
}
