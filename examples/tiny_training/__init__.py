"""How the tiny model is made: vocabulary, data, training, evaluation. Needs torch, transformers, peft,
sentencepiece.

The steps are run by `examples/tiny-nllb/train.py` and `evaluate.py`. Must not be imported by the product.
"""
