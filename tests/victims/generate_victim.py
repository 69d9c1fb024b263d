"""Transformers: greedy generation with a static cache, by a small Llama of random weights. Nothing is downloaded.

Each step continues the text that the last one made.
"""

import hashlib
import os

from dialogue import parser, perform

VOCABULARY, ROWS, PROMPT, MORE = 4000, 8, 32, 16


class Generation:
    def __init__(self) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(13)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=512,
            intermediate_size=1536,
            num_hidden_layers=6,
            num_attention_heads=8,
            num_key_value_heads=4,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
        )
        self.model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
        self.text = torch.randint(2, VOCABULARY, (ROWS, PROMPT), device="cuda")
        self.torch = torch

    def step(self) -> str:
        longer = self.model.generate(
            self.text,
            attention_mask=self.torch.ones_like(self.text),
            max_new_tokens=MORE,
            do_sample=False,
            cache_implementation="static",
            disable_compile=True,
        )
        # What is random of the weights soon repeats itself: the text is moved on by what was not generated from it.
        self.text = (longer[:, -PROMPT:] * 31 + self.text * 17 + 7) % VOCABULARY
        return self.digest()

    def digest(self) -> str:
        return hashlib.sha256(self.text.cpu().numpy().tobytes()).hexdigest()


def main() -> None:
    options = parser(__doc__).parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    perform(options, Generation())


if __name__ == "__main__":
    main()
