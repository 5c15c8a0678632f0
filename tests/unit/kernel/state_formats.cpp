// Answers what an independent program asks about the formats of optimizer states and masters, and
// holds remainders of masters against definitions of their own: every word, or some.
//
//     zero_state_formats answer              a question per line, from the standard input
//     zero_state_formats remainders [STEP]   every STEP-th word, by default all of 2^32: 3 minutes
#include "support/standard.hpp"
#include "zero/kernel/bf16_rounding.hpp"
#include "zero/kernel/random_bits.hpp"
#include "zero/kernel/remainder.hpp"
#include "zero/kernel/root_code.hpp"
#include "zero/precision/mixed.hpp"

namespace {

namespace kernel = zero::kernel;
using kernel::OneLane;
using Word = std::uint32_t;

std::uint64_t next(std::istream& in) {
  std::string text;
  in >> text;
  return std::stoull(text, nullptr, 16);
}

/// The scale of a group and its codes. A word is followed by its random bits, or by `n` for the
/// rounding to nearest.
template <class Code>
void encode(std::istream& in) {
  std::vector<Word> words;
  std::vector<std::string> random;
  for (std::string word, bits; in >> word >> bits;) {
    words.push_back(static_cast<Word>(std::stoul(word, nullptr, 16)));
    random.push_back(bits);
  }
  Word top = 0;
  for (Word const word : words) top = std::max(top, word & 0x7fffffffu);
  auto const scale = kernel::root_scale<Code>(top);
  kernel::RootLevels<Code> const group(scale);
  std::printf("%x", unsigned{scale});
  for (std::size_t i = 0; i < words.size(); ++i) {
    float const x = OneLane::of_bits(words[i]);
    Word const code = random[i] == "n"
                          ? kernel::encode_root_to_nearest<Code>(x, group)
                          : kernel::encode_root<Code>(
                                x, group, static_cast<Word>(std::stoul(random[i], nullptr, 16)));
    std::printf(" %d", int{static_cast<Code>(code)});
  }
}

template <class Code>
void decode(std::istream& in) {
  auto const scale = static_cast<std::uint8_t>(next(in));
  auto const code = static_cast<Code>(next(in));
  float const value =
      kernel::decode_root<Code>(OneLane::load(&code), kernel::root_unit<Code>(scale));
  std::printf("%x", OneLane::bits_of(value));
}

template <class Rest>
void split(Word master) {
  auto const parts = kernel::split_master<Rest>(master);
  std::printf("%x %x %x",
              parts.parameter,
              parts.rest,
              kernel::join_master<Rest>(parts.parameter, parts.rest));
}

void answer(std::istream& in) {
  std::string what;
  in >> what;
  if (what == "encode_m") return encode<std::int8_t>(in);
  if (what == "encode_v") return encode<std::uint8_t>(in);
  if (what == "decode_m") return decode<std::int8_t>(in);
  if (what == "decode_v") return decode<std::uint8_t>(in);
  if (what == "random") {
    std::uint64_t const seed = next(in);
    std::string name;
    in >> name;
    std::uint64_t const part = next(in);
    std::uint64_t const array = next(in);
    auto const stream = kernel::random_stream(
        kernel::random_key(kernel::random_key(name, part), array), seed, next(in));
    std::uint64_t const element = next(in);
    std::printf("%x %x",
                unsigned{kernel::random_bits<std::uint16_t>(stream, element)},
                unsigned{kernel::random_bits<std::uint8_t>(stream, element)});
    return;
  }
  auto const word = static_cast<Word>(next(in));
  if (what == "split_16") return split<std::uint16_t>(word);
  auto const random = static_cast<Word>(next(in));
  if (what == "split_8") return split<std::uint8_t>(kernel::narrowed(word, random));
  if (what == "stochastic") {
    std::printf("%x", kernel::round_stochastically(word, random));
    return;
  }
  std::printf("unknown question");
}

/// The value of a word that is no NaN; of infinity what the next finite number would be.
double value_of(Word word) {
  Word const magnitude = word & 0x7fffffffu;
  Word const exponent = magnitude >> 23;
  double const value = exponent == 0
                           ? magnitude * 0x1p-149
                           : (0x800000u + (magnitude & 0x7fffffu)) *
                                 std::bit_cast<double>(std::uint64_t{1023 - 150 + exponent} << 52);
  return word >> 31 != 0 ? -value : value;
}

/// Of two neighbours of a number by their magnitudes, the nearer one, or the larger.
Word nearer(Word word, Word below, Word unit) {
  double const x = std::abs(value_of(word));
  double const down = x - std::abs(value_of(below));
  double const up = std::abs(value_of(below + unit)) - x;
  return up <= down ? below + unit : below;
}

struct Counts {
  std::uint64_t wrong = 0;
  std::uint64_t words = 0;
  std::uint64_t not_to_even = 0;         ///< finite, where rounding to even gives another parameter
  std::uint64_t infinite_beside = 0;     ///< finite masters with an infinite parameter, 16 bits
  std::uint64_t infinite = 0;            ///< finite words that 24 bits make infinite, to nearest
  std::uint64_t infinite_parameter = 0;  ///< those, and others whose parameter is
  std::uint64_t other_parameter = 0;     ///< where 24 bits give another parameter than 32

  void expect(bool right) { wrong += right ? 0 : 1; }
  void add(Counts const& other) {
    wrong += other.wrong;
    words += other.words;
    not_to_even += other.not_to_even;
    infinite_beside += other.infinite_beside;
    infinite += other.infinite;
    infinite_parameter += other.infinite_parameter;
    other_parameter += other.other_parameter;
  }
};

void check_word(Word const word, Counts& counts) {
  ++counts.words;
  bool const is_nan = (word & 0x7fffffffu) > 0x7f800000u;
  bool const is_finite = (word & 0x7f800000u) != 0x7f800000u;
  Word const plain = is_nan ? (word & 0x80000000u) | 0x7fc00000u : word;
  Word const parameter = is_finite ? nearer(word, word & 0xffff0000u, 0x10000u) >> 16 : plain >> 16;
  auto const whole = kernel::split_master<std::uint16_t>(word);
  counts.expect(whole.parameter == parameter);
  counts.expect(whole.rest <= 0xffffu);
  counts.expect(kernel::join_master<std::uint16_t>(whole.parameter, whole.rest) == plain);
  if (is_finite) {
    Word const to_even = zero::detail::bf16_bits(std::bit_cast<float>(word));
    counts.not_to_even += to_even != parameter ? 1 : 0;
    counts.infinite_beside += (parameter & 0x7f80u) == 0x7f80u ? 1 : 0;
  }

  // As many random bits as a word has.
  Word const some = (word * 0x9e3779b9u) >> 24;
  bool nearest = true;
  for (Word const k : {kernel::narrowed_to_nearest, Word{0}, Word{0xff}, some}) {
    Word const narrow = kernel::narrowed(word, k);
    Word const below = word & 0xffffff00u;
    bool const up = (word & 0xffu) + k > 0xffu;
    counts.expect(narrow == (is_finite ? (up ? below + 0x100u : below) : plain));
    auto const parts = kernel::split_master<std::uint8_t>(narrow);
    bool const stays_finite = (narrow & 0x7f800000u) != 0x7f800000u;
    Word const expected =
        stays_finite ? nearer(narrow, narrow & 0xffff0000u, 0x10000u) >> 16 : narrow >> 16;
    counts.expect(parts.parameter == expected);
    counts.expect(parts.rest <= 0xffu);
    counts.expect(kernel::join_master<std::uint8_t>(parts.parameter, parts.rest) == narrow);
    counts.expect(kernel::narrowed(narrow, some) == narrow);
    if (!std::exchange(nearest, false) || !is_finite) continue;
    counts.expect(narrow == nearer(word, below, 0x100u));
    counts.infinite += stays_finite ? 0 : 1;
    counts.infinite_parameter += (parts.parameter & 0x7f80u) == 0x7f80u ? 1 : 0;
    counts.other_parameter += parts.parameter != parameter ? 1 : 0;
    bool const refused = (word & 0x7fffffffu) >= std::bit_cast<Word>(zero::Rest8::least_infinite);
    counts.expect(refused == ((parts.parameter & 0x7f80u) == 0x7f80u));
  }
}

int check_remainders(std::uint64_t step) {
  constexpr std::uint64_t all = std::uint64_t{1} << 32;
  unsigned const threads = std::max(1u, std::thread::hardware_concurrency());
  std::vector<Counts> of_threads(threads);
  std::vector<std::thread> running;
  for (unsigned t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      Counts counts;
      for (std::uint64_t w = t * step; w < all; w += threads * step) {
        check_word(static_cast<Word>(w), counts);
      }
      of_threads[t] = counts;
    });
  }
  for (std::thread& thread : running) thread.join();
  Counts sum;
  for (Counts const& counts : of_threads) sum.add(counts);
  std::printf("%llu words, %llu wrong\n",
              static_cast<unsigned long long>(sum.words),
              static_cast<unsigned long long>(sum.wrong));
  if (step != 1) return sum.wrong == 0 ? 0 : 1;
  // Of all words, the numbers are known.
  struct Known {
    char const* what;
    std::uint64_t count, expected;
  };
  bool right = sum.wrong == 0;
  for (Known const& known :
       {Known{"halves that even would take the other way", sum.not_to_even, 32640},
        Known{"finite masters with an infinite parameter", sum.infinite_beside, 65536},
        Known{"finite words that 24 bits make infinite", sum.infinite, 256},
        Known{"finite words whose parameter 24 bits make infinite", sum.infinite_parameter, 65792},
        Known{"finite words whose parameter is another one with 24 bits",
              sum.other_parameter,
              128 * 65280}}) {
    std::printf("%llu %s, %s\n",
                static_cast<unsigned long long>(known.count),
                known.what,
                known.count == known.expected ? "as calculated" : "WRONG");
    right = right && known.count == known.expected;
  }
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::string_view const what = argc > 1 ? argv[1] : "";
  if (what == "remainders") return check_remainders(argc > 2 ? std::stoull(argv[2]) : 1);
  if (what != "answer") return 2;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    answer(in);
    std::printf("\n");
  }
  return 0;
}
