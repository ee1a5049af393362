import { Component, type ReactNode } from "react";
import { words } from "../words";

interface Props {
  /** Identifies the page. A new key clears the error. */
  place: string;
  children: ReactNode;
}

interface State {
  failure: string | null;
  place: string;
}

/** Error boundary that shows the error. The rest of the page still works. */
export class Boundary extends Component<Props, State> {
  state: State = { failure: null, place: this.props.place };

  static getDerivedStateFromError(error: unknown): Partial<State> {
    return { failure: error instanceof Error ? error.message : String(error) };
  }

  static getDerivedStateFromProps({ place }: Props, state: State): State | null {
    return place === state.place ? null : { failure: null, place };
  }

  render(): ReactNode {
    const { failure } = this.state;
    if (failure === null) return this.props.children;
    return (
      <div className="notice" role="alert">
        <p dir="auto">{words.broken(failure)}</p>
        <button type="button" className="button" onClick={() => window.location.reload()}>
          {words.reload}
        </button>
      </div>
    );
  }
}
