"""Our model behind the interface of EleutherAI's lm-eval, so that its tasks can ask it (the extra `harness`).

    from lm_eval import simple_evaluate
    results = simple_evaluate(HarnessModel(*RunFolder("runs/sft").load_model()), tasks=[...], apply_chat_template=True)

With `apply_chat_template` questions are put in the model's chat template; else contexts are documents of their own.
"""

import json
import logging
from collections.abc import Sequence
from typing import Any

from minillm.config import SamplingConfig
from minillm.evaluation.exact_match import ANSWER_TOKENS
from minillm.evaluation.log_likelihood import log_likelihoods
from minillm.evaluation.perplexity import windows
from minillm.inference.generate import Completion, stream_ids
from minillm.model.model import Model
from minillm.tokenizer import Tokenizer
from minillm.tokenizer.chat import CHATML, ChatTemplate

try:
    from lm_eval.api.model import LM
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("lm-eval is not installed: pip install 'minillm[harness]'") from error

CHAT = "\0chat "  # begins a context that is messages, as JSON: no text of a task can fake a control token so
log = logging.getLogger(__name__)


class HarnessModel(LM):
    """What lm-eval asks of a model."""

    def __init__(self, model: Model, tokenizer: Tokenizer, batch_size: int = 16, source: str = CHATML) -> None:
        """source: the chat template, as `RunFolder.load_template(tokenizer).source`."""
        super().__init__()
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self._source = source
        self._template: ChatTemplate | None = None

    @property
    def tokenizer_name(self) -> str:
        """By which lm-eval tells caches apart."""
        return f"minillm-{self.tokenizer.fingerprint}"

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The source of the template, for lm-eval's report; it knows of one only."""
        return self.template.source if chat_template else ""

    @property
    def template(self) -> ChatTemplate:
        """Made when first needed: a tokenizer without turns can be asked as well."""
        if self._template is None:
            self._template = ChatTemplate(self.tokenizer, self._source)
        return self._template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A stand-in for the rendered messages, which `loglikelihood` and `generate_until` understand."""
        if not add_generation_prompt:
            raise ValueError("an answer that is begun already (gen_prefix) is not supported with the chat template")
        return CHAT + json.dumps(chat_history)

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """(log p in nats, whether it is the greedy answer) of each (context, continuation)."""
        T = self.model.config.context_len
        pairs = []
        for context, continuation in (request.args for request in requests):
            before, after = self._split(context, continuation)
            pairs.append((self._shorten(before, T + 1 - len(after)), after))
        return [(found.nats, found.is_greedy) for found in log_likelihoods(self.model, pairs, self.batch_size)]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        """log p of each text, its end left out, nats."""
        T, pairs, owners = self.model.config.context_len, [], []
        for number, request in enumerate(requests):
            for pair in windows(self._context(request.args[0]), T, T):
                pairs.append(pair)
                owners.append(number)
        totals = [0.0] * len(requests)
        for owner, found in zip(owners, log_likelihoods(self.model, pairs, self.batch_size)):
            totals[owner] += found.nats
        return totals

    def generate_until(self, requests: list[Any]) -> list[str]:
        """Greedy continuations, each until one of its stop strings, the end of the turn or max_gen_toks."""
        answers = []
        for context, options in (request.args for request in requests):
            stop, size, temperature = self._options(options)
            sampling = SamplingConfig(temperature=temperature, max_tokens=size, stop=stop, seed=0)
            is_chat = context.startswith(CHAT)
            prompt = self._shorten(self._context(context), max(1, self.model.config.context_len - size))
            done = [Completion()]
            end = self.template.stop if is_chat else self.tokenizer.eot
            for _ in stream_ids(self.model, self.tokenizer, [prompt], sampling, end, done):
                pass
            answers.append(done[0].text)
        return answers

    def _options(self, options: dict[str, Any]) -> tuple[tuple[str, ...], int, float]:
        until = options.get("until") or ()
        temperature = float(options.get("temperature", 0.0)) if options.get("do_sample") else 0.0
        stop = (until,) if isinstance(until, str) else tuple(s for s in until if s)
        size = int(options.get("max_gen_toks", ANSWER_TOKENS))
        return stop, min(size, self.model.config.context_len - 1), temperature

    def _context(self, context: str) -> list[int]:
        if context.startswith(CHAT):
            return self.template.prompt(json.loads(context.removeprefix(CHAT)))
        return [self.tokenizer.eot, *self.tokenizer.encode(context)]

    def _split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of both; without a template they are encoded as one, a space at the border is the continuation's."""
        if context.startswith(CHAT):
            return self._context(context), self.tokenizer.encode(continuation)
        bare = context.rstrip()
        before = self._context(bare)
        return before, self._context(context + continuation)[len(before) :]

    def _shorten(self, ids: Sequence[int], room: int) -> list[int]:
        if len(ids) > room:
            log.warning("a context of %d tokens is cut at its beginning to the %d that fit", len(ids), room)
        return list(ids[-room:]) if room > 0 else []
