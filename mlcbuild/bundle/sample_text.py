"""A text that meets the corners of a tokenizer: scripts, emoji, code, white space, specials."""

from __future__ import annotations

SAMPLES: tuple[str, ...] = (
    "",
    " ",
    "a",
    "The quick brown fox jumps over the lazy dog. It wasn't amused; we'll see, they'd've left.",
    "HELLO'S World'S DON'T don\u2019t I'M you'RE x'Ll",
    (
        "Numbers: 0 7 42 365 1999 12345 3.14159 1,000,000 -17 1e-9 0xFF 2^64 \xbd \u2163 \u0664"
        "\u0662"
    ),
    "Two  spaces, three   spaces,\ttabs\t\tand\nlines\n\n\nwith   \n  blanks \n\t\n ends   ",
    "   leading and trailing   ",
    "\r\nWindows\r\n\r\nlines\r\n",
    (
        "no-break\xa0space, em\u2003space, ideographic\u3000space, zero\u200bwidth, \ufeffmark, "
        "\u2028line"
    ),
    (
        "Gr\xf6\xdfe, na\xefve caf\xe9, cafe\u0301 (decomposed), Stra\xdfe, \u0141\xf3d\u017a, "
        "\u0130stanbul, \u1e9e, \ufb01ne"
    ),
    (
        "\u041c\u0430\u043c\u0430 \u043c\u044b\u043b\u0430 \u0440\u0430\u043c\u0443. \u0399\u03b4"
        "\u03bf\u03cd! \u0540\u0561\u0575"
    ),
    (
        "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u3053\u3093\u306b\u3061\u306f\u3001\u4e16\u754c"
        "\u3002\uc548\ub155\ud558\uc138\uc694 \ud55c\uad6d\uc5b4"
    ),
    (
        "\u0634\u0643\u0631\u0627 \u062c\u0632\u064a\u0644\u0627\u060c \u05e9\u05dc\u05d5\u05dd "
        "\u05e2\u05d5\u05dc\u05dd, \u0641\u0627\u0631\u0633\u06cc"
    ),
    (
        "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e, \u0bb5\u0ba3"
        "\u0b95\u0bcd\u0b95\u0bae\u0bcd, \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35, \u10d2\u10d0"
    ),
    (
        "\U0001f600\U0001f44d\U0001f3fd \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1eb"
        "\U0001f1f7 \u2764\ufe0f 1\ufe0f\u20e3 \U0001f9d1\u200d\U0001f680"
    ),
    "\U00010384\U00010330 \U0001d504\U0001d51f \U00020bb7 \u0378 \ue000 \U0010ffff",
    (
        'def f(x: int) -> str:\n    """Doc."""\n    return f\'{x:>8}\' if x != 0 else \'\'\n\n'
        "\tpass # end\n"
    ),
    'for (int i = 0; i < n; ++i) { a[i] += b[i] * 2.0f; }  // {"k": [1, null, true]}',
    "<html>&amp; https://example.org/a?b=c&d=%20#e user@example.org C:\\dir\\file ~/.x $HOME",
    (
        "$$\\int_0^1 x^2\\,dx = \\frac{1}{3}$$ \u2200x\u2208\u211d: \u2203y \u2264 \u221ax \u2260"
        " \u221e \xb1"
    ),
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!!???...---===___***///\\\\\\|||~~~```\"\"\"'''((([[[{{{",
    (
        "snake_case camelCase PascalCase kebab-case SCREAMING_CASE x1y2z3 \xb5s 5\u2033 \xa9\xae"
        "\u2122"
    ),
    "\x00\x01\x1f\x7f\x80\x9f control characters",
)


def all_samples(special_tokens: tuple[str, ...]) -> tuple[str, ...]:
    """The samples, and each special token alone, inside text, between spaces and doubled."""
    extra: list[str] = []
    for token in special_tokens:
        extra += [token, f"before{token}after", f" {token} \n{token}{token}", token[:-1]]
    return SAMPLES + tuple(extra)
