// Prints each field of a network: its name, the number of the ops that have it
// as an attribute, and whether two networks that differ in it are told apart;
// then the format of XLA's calls. Fails if an array is read that has another
// size than one of XLA's calls, or a number that is no value of its field's
// type.
#include <cstdio>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/xla/xla_call.h"

int main() {
  using namespace cudnn_rnn_tf;  // NOLINT: the program's own.
  VisitFields(RnnSpec(), [](const std::string& name, AttrOf ops, const auto&) {
    XlaPass pass, changed;
    VisitFields(changed.problem.spec,
                [&](const char* its_name, AttrOf, auto& field) {
                  using Field = std::remove_reference_t<decltype(field)>;
                  if (name == its_name) {
                    field = static_cast<Field>(static_cast<int>(field) + 1);
                  }
                });
    const bool has_same_params =
        HaveSameParams(pass.problem.spec, changed.problem.spec);
    const bool is_told = KeyOf(pass.problem) != KeyOf(changed.problem) &&
                         XlaConfig(pass) != XlaConfig(changed) &&
                         has_same_params == (ops == AttrOf::kPasses);
    std::printf("%s %d %d\n", name.c_str(), static_cast<int>(ops), is_told);
  });
  XlaPass pass;
  std::istringstream numbers(
      XlaConfig(pass).substr(sizeof("{call = array<i64:")));
  std::vector<int64_t> integers;
  for (int64_t number; numbers >> number; numbers.ignore()) {
    integers.push_back(number);
  }
  int taken = 0;
  const auto take = [&](const std::vector<int64_t>& given) {
    try {
      XlaCallOf<XlaPass>(given.data(), given.size());
      ++taken;
    } catch (const std::invalid_argument&) {
    }
  };
  std::vector<int64_t> given = integers;
  given.push_back(0);
  for (; !given.empty(); given.pop_back()) take(given);
  for (const int64_t mode :
       {int64_t{-1}, static_cast<int64_t>(RnnMode::kCount)}) {
    given = integers;
    given[1] = mode;
    take(given);
  }
  size_t place = 0;
  const auto exceed = [&](const char*, const auto& field) {
    given = integers;
    using Field = std::decay_t<decltype(field)>;
    given[++place] = std::is_same_v<Field, bool>    ? 2
                     : std::is_same_v<Field, float> ? int64_t{1} << 32
                                                    : -1;
    take(given);
  };
  VisitFields(pass, exceed);
  std::printf("%lld\n", static_cast<long long>(integers[0]));
  return taken == 1 ? 0 : 1;
}
