#include "kernels/gpu/cudnn/remembered_choices.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "kernels/gpu/replace_file.h"

namespace cudnn_rnn_tf {
namespace {

// After this many new names, the entries that hold no measurement are dropped,
// so that a program whose configurations never end does not grow for ever.
constexpr size_t kMaxNewNames = 4096;

// Tells whether this process or another one measured the choice.
bool IsMeasured(const Choice& choice) {
  return choice.source == "measured" || choice.source == "stored";
}

std::string FileName() {
  const char* const name = std::getenv("CUDNN_RNN_TF_CHOICE_CACHE");
  return name != nullptr ? name : "";
}

constexpr char kGraph[] = "graph", kChain[] = "chain";

bool ParseIsChain(const std::string& text, bool* is_chain) {
  *is_chain = text == kChain;
  return *is_chain || text == kGraph;
}

// Returns false if the line is not a choice. Another version of this package
// may have written it.
bool ParseLine(const std::string& line, std::string* configuration,
               Choice* choice) {
  std::istringstream stream(line);
  std::string algorithm, forward, backward;
  if (!std::getline(stream, *configuration, '\t') ||
      !std::getline(stream, algorithm, '\t') ||
      !std::getline(stream, forward, '\t') ||
      !std::getline(stream, backward, '\t') ||
      !std::getline(stream, choice->timings) ||
      choice->timings.find('\t') != std::string::npos ||
      !ParseRnnAlgorithm(algorithm, &choice->algorithm) ||
      choice->algorithm == RnnAlgorithm::kAuto ||
      static_cast<int>(choice->algorithm) >= kNumMeasuredAlgorithms ||
      !ParseIsChain(forward, &choice->forward_is_chain) ||
      !ParseIsChain(backward, &choice->backward_is_chain)) {
    return false;
  }
  choice->source = "stored";
  return true;
}

}  // namespace

std::string Choice::Text() const {
  return std::string(kRnnAlgorithmNames[static_cast<int>(algorithm)]) + '\t' +
         (forward_is_chain ? kChain : kGraph) + '\t' +
         (backward_is_chain ? kChain : kGraph) + '\t' + timings;
}

Choices& Choices::Instance() {
  static NeverDestroyed<Choices> choices;
  return *choices;
}

Choices::Choices() : file_(FileName()) { Load(); }

bool Choices::Find(const std::string& configuration, Choice* choice) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(configuration);
  if (found == entries_.end() || found->second.state != State::kDecided) {
    return false;
  }
  *choice = found->second.choice;
  return true;
}

Choices::State Choices::FindAndCount(const std::string& configuration,
                                     Choice* choice) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = At(configuration);
  ++entry.uses;
  if (entry.state == State::kUndecided && entry.uses > 1) {
    entry.state = State::kToBeMeasured;
    return State::kToBeMeasured;
  }
  if (entry.state != State::kDecided) return State::kUndecided;
  *choice = entry.choice;
  return State::kDecided;
}

void Choices::PutOff(const std::string& configuration) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(configuration);
  if (found != entries_.end() && found->second.state == State::kToBeMeasured) {
    found->second.state = State::kUndecided;
  }
}

void Choices::Decide(const std::string& configuration, const Choice& choice) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Set(&At(configuration), choice);
}

void Choices::GiveUp(const std::string& configuration, RnnAlgorithm failed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(configuration);
  if (found == entries_.end() || found->second.choice.algorithm != failed) {
    return;
  }
  Set(&found->second, Choice());
  ++num_given_up_;
}

std::string Choices::Text() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string text;
  for (const auto& [configuration, entry] : entries_) {
    if (entry.state != State::kDecided) continue;
    text += configuration + '\t' + entry.choice.source + '\t' +
            entry.choice.Text() + '\n';
  }
  return text;
}

Choices::Entry& Choices::At(const std::string& configuration) {
  const auto [found, is_new] = entries_.try_emplace(configuration);
  if (is_new && ++num_new_names_ > kMaxNewNames) {
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      const bool goes = entry != found && !IsMeasured(entry->second.choice);
      entry = goes ? entries_.erase(entry) : std::next(entry);
    }
    num_new_names_ = 1;
  }
  return found->second;
}

void Choices::Set(Entry* entry, const Choice& choice) {
  const bool was_measured = IsMeasured(entry->choice);
  entry->state = State::kDecided;
  entry->choice = choice;
  if (was_measured || IsMeasured(choice)) Store();
}

void Choices::Load() {
  if (file_.empty()) return;
  std::ifstream stream(file_);
  std::string line, configuration;
  while (std::getline(stream, line)) {
    Choice choice;
    if (!ParseLine(line, &configuration, &choice)) continue;
    Entry& entry = entries_[configuration];
    // The process's own choices stay.
    if (entry.state != State::kUndecided) continue;
    entry.state = State::kDecided;
    entry.choice = choice;
  }
}

// Keeps what other processes have stored in the meantime.
void Choices::Store() {
  if (file_.empty()) return;
  Load();
  std::string text;
  for (const auto& [configuration, entry] : entries_) {
    if (IsMeasured(entry.choice)) {
      text += configuration + '\t' + entry.choice.Text() + '\n';
    }
  }
  ReplaceFile(file_, text, /*is_private=*/false);
}

}  // namespace cudnn_rnn_tf
