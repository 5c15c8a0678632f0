// A communicator of one's own over MPI's collectives, where a network adds or MPI is tuned to it.
//
// Sums are those of zero::Mpi up to the rounding of each addition. MPI knows no 16-bit floats, and
// adds in the type that it is given: other precisions are refused. Calls that differ between ranks
// are not found out; zero::Checked around it does that.
#pragma once

#include <zero/zero.hpp>

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>

/// MPI works on copies, which it keeps where a collective is given up, by a dropped ticket or a
/// deadline that is over: nobody can cancel it, and such a job ends by MPI_Abort.
/// @tparam P  the precision of the optimizers over it
template <zero::Precision P = zero::Fp32>
class NativeCollectives {
  static_assert(
      sizeof(typename P::Wire) >= 4 && std::is_same_v<typename P::Wire, typename P::Accumulate>,
      "NativeCollectives: MPI adds fp32 and fp64, each in its own type; take zero::Mpi<>");

  struct Copies {
    zero::Collective op;
    std::size_t result_bytes;
    std::unique_ptr<std::byte[]> memory;  // the result, then what is sent
    MPI_Request request = MPI_REQUEST_NULL;
    ~Copies() {
      if (request != MPI_REQUEST_NULL) static_cast<void>(memory.release());
    }
  };

 public:
  using Space = zero::space::Host;
  using Ticket = std::unique_ptr<Copies>;  ///< null: done

  /// Duplicates `comm`. Collective, as `split` and `close`; these three have no deadline.
  explicit NativeCollectives(MPI_Comm comm, double deadline_s = 600.) : deadline_s_(deadline_s) {
    MPI_Comm_dup(comm, &comm_);
    look();
  }
  NativeCollectives(NativeCollectives&&) noexcept = default;
  NativeCollectives split(int color, int key) {
    NativeCollectives part(*this);
    MPI_Comm_split(comm_, color, key, &part.comm_);
    part.look();
    return part;
  }
  /// Gives MPI back what it holds for this group, of which only destruction may follow.
  void close() { MPI_Comm_free(&comm_); }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  Ticket start(zero::Collective const& op) {
    using enum zero::Op;
    bool const sums = op.op == reduce_scatter || op.op == all_reduce;
    bool const sends = op.op != broadcast || rank_ == op.root;
    auto const ranks = static_cast<std::size_t>(size_);
    std::size_t const block = op.block_bytes();
    std::size_t const sent = op.op == reduce_scatter || op.op == all_to_all ? ranks * block : block;
    std::size_t const got = op.op == all_gather || op.op == all_to_all ? ranks * block : block;
    MPI_Datatype const type = sums ? added_type(op) : MPI_BYTE;
    char const* const problem =
        type == MPI_DATATYPE_NULL ? "MPI adds fp32, fp64 and integers, each in its own type"
        : op.squares != nullptr   ? "squares are not added here"
        : op.op == broadcast && (op.root < 0 || op.root >= size_) ? "the root is no rank"
        : op.count > (std::size_t{1} << 30) / size_of(op.dtype) / ranks
            ? "MPI is given at most 1 GiB at once"
        : op.count > 0 && !is_sound(op, sends, sent, got)
            ? "a buffer is null, not aligned, or overlaps the other where it must not"
            : nullptr;
    if (problem != nullptr) fail(zero::ErrorKind::invalid_argument, problem, op);
    check(MPI_SUCCESS, op);
    Ticket copies(new Copies{op, got, std::make_unique_for_overwrite<std::byte[]>(got + sent)});
    std::byte* const to = copies->memory.get();
    std::byte* const from = op.op == broadcast ? to : to + got;
    if (sends && op.count > 0) std::memcpy(from, op.send, sent);
    auto const n = static_cast<int>(sums ? op.count : block);
    MPI_Request* const r = &copies->request;
    check(op.op == reduce_scatter ? MPI_Ireduce_scatter_block(from, to, n, type, MPI_SUM, comm_, r)
          : op.op == all_reduce   ? MPI_Iallreduce(from, to, n, type, MPI_SUM, comm_, r)
          : op.op == all_gather   ? MPI_Iallgather(from, n, type, to, n, type, comm_, r)
          : op.op == all_to_all   ? MPI_Ialltoall(from, n, type, to, n, type, comm_, r)
                                  : MPI_Ibcast(to, n, type, op.root, comm_, r),
          op);
    return copies;
  }

  void wait(Ticket& copies) {
    if (copies == nullptr) return;
    zero::Collective const op = copies->op;
    double const begun = MPI_Wtime();
    for (int done = 0; done == 0; std::this_thread::yield()) {
      check(MPI_Test(&copies->request, &done, MPI_STATUS_IGNORE), op);
      if (done == 0 && MPI_Wtime() - begun > deadline_s_) *ended_ = "a rank missed the deadline";
    }
    if (op.count > 0) std::memcpy(op.recv, copies->memory.get(), copies->result_bytes);
    copies.reset();
  }

 private:
  NativeCollectives(NativeCollectives const&) = default;
  void look() {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  static MPI_Datatype added_type(zero::Collective const& op) {
    if (op.accumulate != op.dtype) return MPI_DATATYPE_NULL;
    return op.dtype == zero::DType::f32   ? MPI_FLOAT
           : op.dtype == zero::DType::f64 ? MPI_DOUBLE
           : op.dtype == zero::DType::i32 ? MPI_INT32_T
           : op.dtype == zero::DType::i64 ? MPI_INT64_T
                                          : MPI_DATATYPE_NULL;
  }
  bool is_sound(zero::Collective const& op, bool sends, std::size_t sent, std::size_t got) const {
    auto const send = reinterpret_cast<std::uintptr_t>(op.send);
    auto const recv = reinterpret_cast<std::uintptr_t>(op.recv);
    auto const is_bad = [&](auto at) { return at == 0 || at % size_of(op.dtype) != 0; };
    if (is_bad(recv) || (sends && is_bad(send))) return false;
    if (!sends || send + sent <= recv || recv + got <= send) return true;
    std::size_t const own = static_cast<std::size_t>(rank_) * op.block_bytes();
    if (op.op == zero::Op::reduce_scatter) return recv == send + own;
    if (op.op == zero::Op::all_gather) return send == recv + own;
    return op.op != zero::Op::all_to_all && send == recv;
  }

  [[noreturn]] void fail(zero::ErrorKind kind, char const* why, zero::Collective const& op) const {
    std::string const operation(zero::name(op.op));
    zero::fail(kind, why, {.rank = rank_, .operation = operation, .bucket = op.bucket});
  }
  void check(int code, zero::Collective const& op) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code != MPI_SUCCESS && MPI_Error_string(code, text, &length) == MPI_SUCCESS) *ended_ = text;
    if (!ended_->empty()) fail(zero::ErrorKind::communication, ended_->c_str(), op);
  }
  double deadline_s_;
  std::shared_ptr<std::string> ended_ = std::make_shared<std::string>();  ///< why, of all groups
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = -1, size_ = 0;
};
static_assert(zero::SplittableCommunicator<NativeCollectives<>>);
