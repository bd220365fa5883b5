// The tokens of a row of logits that may be picked, cut down step by step without sorting the row.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "text/logit_row.h"

namespace mlcb {

// How logits become weights: e^((logit - greatest) * scale), 0 below `least`.
struct Weighing {
  float greatest = 0;  // of the row
  float scale = 1;     // 1 / temperature
  float least = 0;     // min_p
};

// Tokens rank by logit, equal ones by id, lowest first. Drawing goes by id, so a token does not
// depend on how the candidates were found. Holds its memory from one row to the next; not
// thread-safe.
class Candidates {
 public:
  struct Token {
    float logit;
    int32_t id;
    uint64_t weight;
  };

  // Starts on a row, which must outlive what follows. Infinite logits take part in nothing: if
  // there are some, a copy without them takes the row's place. Returns the greatest logit, minus
  // infinity if there is none.
  float start(const LogitRow& row);
  // The token that ranks first.
  int32_t first() const;
  // The few (`count`) tokens that rank first, in order.
  std::vector<Token> first(size_t count);

  // The sum of the weights of the whole row.
  uint64_t weigh_row(const Weighing& weighing);
  // Draws from the whole row: share (0..1) says which part of the weight is meant.
  int32_t draw_from_row(const Weighing& weighing, double share);

  // Makes the `count` tokens that rank first the candidates.
  void keep_top_k(size_t count);
  // Drops the candidates behind the first few that hold `top_p` of their weight together.
  void keep_top_p(const Weighing& weighing, float top_p);
  // The same for all tokens of the row as candidates.
  void keep_top_p_of_row(const Weighing& weighing, float top_p);
  // Draws from the candidates.
  int32_t draw(const Weighing& weighing, double share);

 private:
  float bound_of_rank(size_t rank);
  void collect(float bound);
  uint64_t weigh(const Weighing& weighing);
  void rank_all();
  void rank_last_range(uint64_t* wanted);
  void keep_weight(uint64_t wanted);
  void keep_down_to(const Token& last);

  LogitRow row_;
  std::vector<float> finite_;             // a copy of the row without infinite logits
  std::vector<float> maxima_, selected_;  // of the row's groups; the same to choose from
  std::vector<uint64_t> sums_;            // weight of each chunk of the row
  // The candidates in order of their ids.
  std::vector<float> logits_;
  std::vector<int32_t> ids_;
  std::vector<uint64_t> weights_;  // once weighed
  std::vector<Token> ranked_;      // some of them, to be put in order
};

}  // namespace mlcb
