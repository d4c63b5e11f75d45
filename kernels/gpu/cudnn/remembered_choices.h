// Remembers how each configuration runs, which is chosen once: in the process
// and, if a file is named for that, beyond it.
#ifndef CUDNN_RNN_TF_KERNELS_GPU_CUDNN_REMEMBERED_CHOICES_H_
#define CUDNN_RNN_TF_KERNELS_GPU_CUDNN_REMEMBERED_CHOICES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "kernels/never_destroyed.h"
#include "kernels/rnn_backend.h"

namespace cudnn_rnn_tf {

struct Choice {
  RnnAlgorithm algorithm = RnnAlgorithm::kStandard;
  // A pass may be replayed as a chain instead of the graph that was captured.
  bool forward_is_chain = false, backward_is_chain = false;
  // The way the choice was made: "rule", "pinned", "measured" or "stored".
  std::string source = "rule";
  // The measured times, in words.
  std::string timings;

  // Returns "algorithm\tforward\tbackward\ttimings"; a pass is "graph" or
  // "chain".
  std::string Text() const;
};

// Thread-safe.
class Choices {
 public:
  static Choices& Instance();

  enum class State {
    kUndecided,     // Seen for the first time, or being measured elsewhere.
    kToBeMeasured,  // The caller measures it and then calls Decide.
    kDecided
  };
  // Finds the configuration's choice. Returns false if it is not decided.
  bool Find(const std::string& configuration, Choice* choice);
  // Does the same as Find, and counts a use of the configuration.
  State FindAndCount(const std::string& configuration, Choice* choice);
  // Sets the configuration's choice. The file holds only choices that were
  // measured.
  // Says that measuring has failed. The next use is to measure again.
  void PutOff(const std::string& configuration);
  void Decide(const std::string& configuration, const Choice& choice);
  // Makes `standard` run from now on, if the configuration's choice is still
  // the algorithm that failed.
  void GiveUp(const std::string& configuration, RnnAlgorithm failed);
  // The number of choices that were given up. A choice that was found when it
  // was smaller may be out of date.
  int64_t num_given_up() const { return num_given_up_; }

  // Returns a line "configuration\tsource\t<Choice::Text>" for each
  // configuration that is decided.
  std::string Text();

 private:
  friend class NeverDestroyed<Choices>;

  struct Entry {
    int uses = 0;
    State state = State::kUndecided;
    Choice choice;
  };

  Choices();
  Entry& At(const std::string& configuration);
  void Set(Entry* entry, const Choice& choice);
  void Load();
  void Store();

  const std::string file_;
  std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  size_t num_new_names_ = 0;
  std::atomic<int64_t> num_given_up_ = 0;
};

}  // namespace cudnn_rnn_tf

#endif  // CUDNN_RNN_TF_KERNELS_GPU_CUDNN_REMEMBERED_CHOICES_H_
