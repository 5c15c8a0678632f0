! Fortran 2008 over zero/c.h: a rank alone fits two numbers. Structs of another layout are refused.
! prints: fitted  0.25[0-9]* -0.50?[0-9]*
module zero_c
  use, intrinsic :: iso_c_binding
  implicit none
  real(c_double), parameter :: by_default = -1d300

  type, bind(c) :: tensor_t
    integer(c_int64_t) :: size
    type(c_ptr) :: name, tied_to, group
    integer(c_int64_t) :: shape(8)
    integer(c_int32_t) :: dims, unit, flags
    real(c_float) :: learning_rate, weight_decay
    integer(c_int32_t) :: dtype
  end type
  type, bind(c) :: rule_t
    integer(c_int64_t) :: size
    integer(c_int32_t) :: number, reserved
    real(c_double) :: lr, others(13)
  end type
  type, bind(c) :: options_t
    integer(c_int64_t) :: size
    integer(c_int32_t) :: stage, precision, accumulation, memory, prefetch, loss_scale_interval
    integer(c_int64_t) :: bucket_bytes
    real(c_double) :: loss_scale
    integer(c_int32_t) :: loss_scale_patience, reserved
    type(rule_t) :: rule
  end type

  interface
    integer(c_int32_t) function zero_self(comm, message, bytes) bind(c)
      import; type(c_ptr), intent(out) :: comm
      type(c_ptr), value :: message; integer(c_int64_t), value :: bytes
    end function
    integer(c_int32_t) function zero_comm_close(comm, message, bytes) bind(c)
      import; type(c_ptr), value :: comm, message
      integer(c_int64_t), value :: bytes
    end function
    integer(c_int32_t) function zero_create_flat(comm, options, tensors, count, parameters, &
                                                 gradients, elements, optimizer) bind(c)
      import
      type(c_ptr), value :: comm
      type(options_t), intent(in) :: options
      type(tensor_t), intent(in) :: tensors(*)
      integer(c_int32_t), value :: count
      real(c_float) :: parameters(*), gradients(*)
      integer(c_int64_t), value :: elements
      type(c_ptr), intent(out) :: optimizer
    end function
    integer(c_int32_t) function zero_step(optimizer, options, report) bind(c)
      import; type(c_ptr), value :: optimizer, options, report
    end function
  end interface
end module

program fit
  use zero_c; implicit none
  type(tensor_t) :: model(1)
  type(options_t) :: options
  type(c_ptr) :: comm, optimizer
  character(kind=c_char), target :: name(2) = ['w', c_null_char]
  real(c_float) :: parameters(2) = [0., 1.], gradients(2)
  integer :: step

  model(1) = tensor_t(c_sizeof(model(1)), c_loc(name), c_null_ptr, c_null_ptr, &
                      [2_c_int64_t, spread(0_c_int64_t, 1, 7)], 1, 0, 0, 1., 1., 0)
  ! Of ZERO_POS_G (2) and ZERO_FP32 (0), with one unit ahead.
  options = options_t(c_sizeof(options), 2, 0, 0, 0, 1, 0, 0_c_int64_t, 0d0, 0, 0, &
                      rule_t(c_sizeof(options%rule), 0, 0, 0.05d0, by_default))
  if (zero_self(comm, c_null_ptr, 0_c_int64_t) /= 0) error stop 'zero_self'
  if (zero_create_flat(comm, options, model, 1, parameters, gradients, 2_c_int64_t, optimizer) /= 0) &
    error stop 'zero_create_flat'
  do step = 1, 300
    gradients = 2 * (parameters - [0.25, -0.5])
    if (zero_step(optimizer, c_null_ptr, c_null_ptr) /= 0) error stop 'zero_step'
  end do
  if (any(abs(parameters - [0.25, -0.5]) > 0.01)) error stop 'other parameters'
  print '(a, 2f7.3)', 'fitted', parameters
  if (zero_comm_close(comm, c_null_ptr, 0_c_int64_t) /= 0) error stop 'zero_comm_close'
end program
