#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/rules/rule.h"

/// A report of what `choose` considered, for users, the command line and error messages.
///
///   operands     results  time      sent     work  held      verdict        mm, dp=2,tp=4
///   S0,R | R,S1  S0,S1    0 us      0 B      1x    896 B     chosen
///   R,R | R,S1   R,S1     450.5 us  256 B    2x    1.25 KiB  450.5 us slower
///   S0,R | R,R   S0,R     503.1 us  1.5 KiB  4x    2.75 KiB  503.1 us slower
///   ...
///   not offered on  operands    why
///   dp              P(sum) | R  nothing is partial here
namespace tessera::rules {

struct TESSERA_API Explanation {
  enum class Verdict : uint8_t { chosen, costlier, dropped };

  struct Candidate {
    std::vector<std::string> operands;  ///< placements, one per given operand
    std::vector<std::string> results;
    double seconds = 0;  ///< to redistribute the operands and combine results
    int64_t bytes = 0;   ///< the largest number of bytes that one rank sends for it
    double work = 1;     ///< of the busiest rank; 1 is an equal share, 8 all of it on 8 ranks
    int64_t held = 0;    ///< bytes of operands and (if known) results on the first rank
    std::vector<std::string> moves;  ///< "1: all_gather over tp  S0 -> R"
    std::string kernel;              ///< what runs instead of the op, see Row::kernel
    KernelComm comm = KernelComm::none;
    Verdict verdict = Verdict::costlier;
    std::string why;  ///< "", "12 us slower", "as fast, but 4x the work", "a conflict"
  };
  /// Placements that one axis alone excludes.
  struct Refused {
    std::string axis;
    std::string operands;
    std::string why;
  };

  std::string rule;                   ///< its text
  std::vector<Candidate> candidates;  ///< the chosen one first, then by time; dropped ones last
  std::vector<Refused> refused;
  bool complete = true;  ///< false: not all combinations were considered

  std::string to_text() const;
};

struct ExplainOptions {
  int candidates = 32;  ///< combinations that are priced and listed
};

TESSERA_API Explanation explain(const Rule& rule, const OpCall& call,
                                const ExplainOptions& options = {});

}  // namespace tessera::rules
