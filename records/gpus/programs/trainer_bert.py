"""BERT-base under transformers' Trainer in bf16, with its defaults."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 32 * 24

    def __getitem__(self, index):
        return {"input_ids": torch.randint(1000, 30000, (256,)), "attention_mask": torch.ones(256, dtype=torch.long), "labels": index % 2}


arguments = TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=32, num_train_epochs=1, bf16=True, report_to="none", save_strategy="no",
                              logging_steps=10, dataloader_num_workers=2)
Trainer(BertForSequenceClassification(BertConfig()), arguments, train_dataset=Texts()).train()
