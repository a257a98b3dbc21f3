"""transformers#24420: whisper-large in 8 bits with LoRA, 8 recordings of 30 seconds, as `test_audio_model_training` of peft trained it on a T4.

The thread names a failing run of peft's tests on a GPU and not the test; peft#617 changed this one the day after. Zeros for weights and recordings;
the length of the sentences, 64 tokens, is ours.
"""
import bitsandbytes as bnb
import torch
import transformers
import zeros
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, WhisperConfig, WhisperForConditionalGeneration

# Of newer releases peft of then asks for what they know no more, and adds to what they give, which was a copy then.
bnb.MatmulLtState.memory_efficient_backward = False
made, forward = bnb.nn.Linear8bitLt.__init__, bnb.nn.Linear8bitLt.forward
bnb.nn.Linear8bitLt.__init__ = lambda self, *words, memory_efficient_backward=False, **how: made(self, *words, **how)
bnb.nn.Linear8bitLt.forward = lambda self, x: forward(self, x).clone()
from peft import LoraConfig, get_peft_model, prepare_model_for_int8_training  # noqa: E402

layers = dict(encoder_layers=32, encoder_attention_heads=20, encoder_ffn_dim=5120, decoder_layers=32, decoder_attention_heads=20, decoder_ffn_dim=5120)
folder = zeros.model(WhisperConfig(vocab_size=51865, d_model=1280, **layers), "WhisperForConditionalGeneration")
model = WhisperForConditionalGeneration.from_pretrained(folder, load_in_8bit=True, device_map={"": 0})
model.config.forced_decoder_ids, model.config.suppress_tokens = None, []
model = prepare_model_for_int8_training(model)
model = get_peft_model(model, LoraConfig(r=32, lora_alpha=64, target_modules=["q_proj", "v_proj"], lora_dropout=0.05, bias="none"))
arguments = Seq2SeqTrainingArguments(
    output_dir=folder / "out",
    per_device_train_batch_size=8,
    learning_rate=1e-3,
    warmup_steps=2,
    max_steps=3,
    fp16=True,
    remove_unused_columns=False,
    label_names=["labels"],
    report_to=[],
    save_strategy="no",
)
row = {"input_features": torch.zeros(80, 3000), "labels": torch.zeros(64, dtype=torch.long)}
Seq2SeqTrainer(args=arguments, model=model, train_dataset=[row] * 64).train()
print(transformers.__version__, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
